"""PostgreSQL as a destination: catalog, fencing, sessions, writes, error queue."""
