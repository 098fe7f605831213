"""Memory databases and real servers: the harnesses of the contract suites, settings, sessions, logs, standbys."""
