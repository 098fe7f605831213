"""Headrace's data in a destination: the schema headrace, its tables and views, and their removal."""
