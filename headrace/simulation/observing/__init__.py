"""What must be true of a simulated topology, and what is seen of it."""
