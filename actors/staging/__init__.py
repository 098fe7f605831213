"""Queues and propagations: their cores, and the hosts that run them.

`queue` keeps batches until every subscriber's destination has committed them. It stores them in `queue_space` (memory, then `spill` files)
and has a `staged_source` with a `queue_log` for each source; further parts are `queue_sessions`, `subscribers`, `refusals` and acknowledged
`positions`. `propagation` moves batches to another queue, at its `pacing`. `queue_host` and `propagation_host` are the components.
"""
