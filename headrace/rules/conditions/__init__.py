"""Conditions of rules: parsed, checked, and evaluated on whole columns or row by row."""
