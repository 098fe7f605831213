"""Comparison with PostgreSQL's native logical replication: `make bench`."""
