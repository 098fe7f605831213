"""Verbs of the command line that are more than a call of `headrace.deployment`. `headrace.cli` calls them.

Error transactions: `error_queue` (list, show), `error_edits`, `error_execution`, `error_deletion`. Tables:
`verification`, `table_copies`, `sequences`, `conflicts`. Components: `capture_scns`, `split_streams`, `described` (for
`status --json`). Before and after a topology runs: `doctor`, `certificates`, `simulated`, and `kept` (what `down`
leaves or removes).
"""
