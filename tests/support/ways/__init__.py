"""Several sites on real servers, and the ways between them, in the process of the test: neither Ray nor Spark."""
