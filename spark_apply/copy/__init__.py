"""Spark jobs beside apply: instantiation and comparison."""
