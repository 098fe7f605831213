"""What is asked of two databases alike, to be compared."""
