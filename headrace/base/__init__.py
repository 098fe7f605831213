"""What every package stands on and what knows none of them.

`errors` has the roots of all errors, `clock` time as a port, `backoff` pauses between tries, `failpoints` the places where a test makes a
process die. `durable_file`, `folder_place` and `plain_data` are for small files that outlive a crash.
"""
