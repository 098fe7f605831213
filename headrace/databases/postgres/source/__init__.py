"""PostgreSQL as a source: `database` is the port.

`log_stream` has the slot, the stream and its decoder. `publication`, `supplemental_logging` and `binary_types` say what of a table is in
the log, `row_marks` what the catalog says of its columns. `preflight` and `left_out` find what keeps a database from being a source or
what no log brings, `planning` says what it will be asked to do, `admin` needs more rights than capturing.
"""
