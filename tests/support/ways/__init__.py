"""Several sites on real servers, and the ways between them, in the test's process: neither Ray nor Spark."""
