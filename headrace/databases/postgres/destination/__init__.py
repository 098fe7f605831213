"""PostgreSQL as a destination. A module imports only modules further down this list.

admin            setup that needs more rights than applying
database         the port: preflight, preparation, progress, error queue
server_session   the session of one apply server
preflight        checks whether a database can be a destination; `rights` and `trust` are parts of it
records          Headrace's own data here: the schema headrace, its tables and views
writing          the statements of row changes, and the notes of when rows were changed
row_times        recorded change times of rows, only for tables with latest_timestamp
fencing          which session may apply
"""
