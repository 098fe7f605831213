"""Rows, values, names, conditions and messages, made by hand or at random."""
