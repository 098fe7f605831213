"""What is recorded of an apply process's tables at the destination, and what changes those records."""
