"""PostgreSQL servers that Headrace brings along and runs itself, for the demonstration, tests, and sites without a `dsn`."""
