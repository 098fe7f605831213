"""Basics that every package uses and that depend on none of them.

`errors` has the roots of all errors, `clock` time as a port, `backoff` the pauses between retries, `failpoints` the
places where a test makes a process die. `durable_file`, `folder_place` and `plain_data` are for small files that
survive a crash.
"""
