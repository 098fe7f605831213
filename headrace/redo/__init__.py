"""Redo: a source's log as Headrace keeps it. Knows records, positions and checksums, not the bytes' format.

`records` and `segments` are what a redo log consists of, `dictionary` what tables were called and looked like, `checkpoints` what capture
processes may still have to read. `writing` writes a source's redo log, `standby` ships it to other sites and writes it there, `mining`
reads it.
"""
