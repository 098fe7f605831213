"""PostgreSQL as a source: catalog, preflight, log stream and log decoder."""
