"""The session of one apply server at a destination.

`session` is the port. It consists of `transaction` (what was sent, what is open), `described_tables` and `write_plans` (the tables and
their statements), `set_writer` and `row_finder` (writes, and questions about rows), `users_sql` (handlers, triggers), `session_times`
(latest_timestamp), `server_progress` and `foreign_keys_at_commit`. `kept_session` guards what users' SQL must leave as it was.
"""
