"""Observations of a simulated topology: histories, expected rows, violations and the trace."""
