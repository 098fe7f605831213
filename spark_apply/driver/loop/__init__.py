"""The loop of an apply driver: one thread that runs reader and coordinator, and everything that has a turn on it.

`host` is the loop, `inbox` what other threads say to it. `dequeuing` and `newest_dequeuing` have the stream out of the queue,
`recorded_progress` and `flushes` what the destination has recorded, `joining` tables that are left out and join, `error_requests`
error transactions, `fit_checks` tables that do not fit, `view_writer` the destination's views.
"""
