"""Spark jobs that run alongside apply: instantiation and comparison."""
