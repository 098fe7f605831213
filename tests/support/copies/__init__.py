"""Copies of tables to a destination, as an apply process makes them, and the marks of their rows."""
