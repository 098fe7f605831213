"""The redo of another site: `shipping` sends it from the source, and `standby_log` is what it becomes there, byte for byte.

`archive_folder` takes segments that come as files. `kept_segments` is what any redo folder holds, a source's own too.
"""
