"""When rows of a destination were changed last, only of tables with latest_timestamp: what statements ask, and what is noted.

`recent_changes` is the condition that a row was not changed later here. `noted_sets` has the times of rows that one statement wrote,
`lost_times` what is known without them. `row_triggers` note deletes. Notes of single rows are in `writing.row_changes`, which writes
them with the rows.
"""
