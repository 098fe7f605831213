"""The redo of another site: `shipping` sends it from the source, `standby_log` writes its copy there, byte for byte.

`archive_folder` takes segments that arrive as files. `kept_segments` has the segments of any redo folder, a source's
own too.
"""
