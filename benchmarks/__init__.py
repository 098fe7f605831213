"""Side by side with PostgreSQL's native logical replication: `make bench`."""
