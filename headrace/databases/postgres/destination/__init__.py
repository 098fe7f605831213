"""PostgreSQL as a destination. An import may only point down this list.

admin            what needs more rights than applying
database         the port: preflight, preparation, progress, error queue
server_session   the session of one apply server
preflight        what keeps a database from being a destination; `rights` and `trust` are parts of it
records          what Headrace keeps here: the schema headrace, its tables and views
writing          the statements of row changes, and the notes of when rows were changed
row_times        what is known of when rows were changed: only of tables with latest_timestamp
fencing          which session may apply
"""
