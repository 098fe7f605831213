"""Writing a source's own redo log: `log_writer` drains the source's log stream into segments.

It reads the stream at a pace (`stream_intake`, `gulp_pace`), appends to the online segment (`online_log`), awaits
dictionary builds (`awaited_builds`) and keeps within its disk space (`redo_space`). `source_refusal` records a refusal
of the source, next to the log.
"""
