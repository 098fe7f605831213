"""Component statuses: one frozen dataclass for each kind of component, and one vocabulary.

    component    common part of every status; last error; refused callers
    queues       queues, their sources and subscribers
    propagations propagations, and the effect of compression
    redo         redo logs and their standbys
    sites        sites with and without a database
    captures     capture processes
    applies      apply processes, their servers, and the copies of their tables
    sparks       Spark applications
    controllers  controllers
    overview     the overview of a topology: its flows, split streams, findings, and all of these
    plain        statuses as plain data for `json`, and back: the border

Words, in all kinds:

    <unit>_total      counted since the component's process began: rows_total, bytes_total, rewinds_total (without the
                      suffix in `wire`, in the counts of sent alerts, and in the views' `counters`)
    <unit>_per_s      the same per second, over the controller's last observations
    rows, batches     current number; rows are row LCRs
    <what>_bytes      current bytes; <what>_bytes_max: their bound
    <role>_scn        a position in the source's log
    <what>_us         a time of day in microseconds since the epoch, 0: never; <what>_s: a duration in seconds

An unknown value is None, never 0, and is omitted from plain data.
"""
