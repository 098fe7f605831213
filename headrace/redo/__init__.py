"""Redo: a source's log as Headrace keeps it.

This package knows records, positions and checksums, not the format of the log's bytes.

`records` and `segments` are the parts of a redo log, `dictionary` the names and columns of tables at each SCN,
`checkpoints` the redo that capture processes may still have to read. `writing` writes a source's redo log, `standby`
ships it to other sites and writes it there, `mining` reads it.
"""
