"""What several suites share: import it as `tests.support.<module>`."""
