"""The loop of an apply driver: one thread that runs reader and coordinator, and everything else that takes turns on it.

`host` is the loop, and `inbox` takes calls of other threads. `dequeuing` and `newest_dequeuing` read the queue.
`recorded_progress` and `flushes` track what the destination has recorded. `joining` handles skipped and joining tables,
`error_requests` error transactions, `fit_checks` tables that do not fit, `view_writer` the destination's views.
"""
