"""The session of one apply server at a destination.

`session` is the port. It consists of `transaction` (the open transaction and its pending statements), `described_tables`
and `write_plans` (tables and their statements), `set_writer` and `row_finder` (writes, and queries about rows),
`users_sql` (handlers, triggers), `session_times` (latest_timestamp), `server_progress` and `foreign_keys_at_commit`.
`kept_session` guards the session state that users' SQL must not change.
"""
