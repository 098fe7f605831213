"""Databases in memory, a source and a destination: what simulation and tests run on.

They keep the promises of `headrace.databases.ports` (`tests/contract`). `source` and `destination` are the ports, `store` is what both
keep, `session`, `transaction` and `rows` an apply server's side of it, `log` the byte format of its own.
"""
