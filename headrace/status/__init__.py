"""What components say of themselves: one frozen dataclass for each kind of component, and one vocabulary.

    component    what every component says; its last error; whom it refused
    queues       queues, their sources and subscribers
    propagations propagations, and what compression brings
    redo         redo logs and their standbys
    sites        sites with and without a database
    captures     capture processes
    applies      apply processes, their servers, and the copies of their tables
    sparks       Spark applications
    controllers  controllers
    overview     the overview of a topology: its flows, split streams, findings, and all of these
    plain        statuses as plain data for `json`, and back: the border

Words, in all kinds:

    <unit>_total      counted since the component's process began: rows_total, bytes_total, rewinds_total (under plain names
                      in `wire`, in what was sent of alerts, and in the views' `counters`)
    <unit>_per_s      the same, a second, over the last observations of the controller
    rows, batches     what is there now; rows are row LCRs
    <what>_bytes      bytes that are there now; <what>_bytes_max: their bound
    <role>_scn        a position in the source's log
    <what>_us         a time of day in microseconds since the epoch, 0: never; <what>_s: a length of time in seconds

What is unknown is None, never 0, and is left out of plain data.
"""
