"""Writing a source's own redo log: `log_writer` drains the source's log stream into segments.

It takes from the stream at a pace (`stream_intake`, `gulp_pace`), appends to the online segment (`online_log`), awaits dictionary builds
(`awaited_builds`) and keeps to its room on the disk (`redo_space`). `source_refusal` is what a source refused, kept beside the log.
"""
