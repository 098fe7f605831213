"""Comparison of source and destination tables, as Spark jobs."""
