"""PostgreSQL as a source: `database` implements the port.

`log_stream` has the slot, the stream and its decoder. `publication`, `supplemental_logging` and `binary_types`
determine what the log has of a table, `row_marks` reads marks from the catalog. `preflight` and `left_out` find what
prevents a database from being a source, or what no log brings. `planning` lists planned statements, `admin` needs more
rights than capturing. `ddl` records DDL for the log.
"""
