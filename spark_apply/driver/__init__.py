"""What runs in the driver of an apply process: reader, coordinator, and what they talk to."""
