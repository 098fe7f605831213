"""Times of rows' last changes at a destination, only for tables with latest_timestamp: conditions and notes.

`recent_changes` has the condition that a row was not changed later here. `noted_sets` has the times of the rows that
one statement wrote, and `lost_times` bounds for times that the server has lost. `row_triggers` make the triggers that
note deletes. Notes of single rows are in `writing.row_changes`, which writes them with the rows.
"""
