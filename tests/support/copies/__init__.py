"""Copies of tables to a destination, made as an apply process makes them, and the marks of their rows."""
