"""In-memory databases, a source and a destination, for simulation and tests.

They fulfil the contracts of `headrace.databases.ports` (`tests/contract`). `source` and `destination` implement the
ports, `store` holds the destination's state, `session`, `transaction` and `rows` implement an apply server's session,
`log` the log's own byte format, `ddl_log` the table in it that has DDL.
"""
