"""What is noted of a simulated topology, and what follows from that: histories, expected rows, violations, the trace."""
