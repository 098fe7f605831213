"""Bundled PostgreSQL servers that Headrace runs itself: for the demonstration, tests, and sites without a `dsn`."""
