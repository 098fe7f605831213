"""Headrace: log-based, rule-based replication.

An import may only point down this list:

    cli          the command `headrace`: its verbs and options
    chaos demo   faults under load; the demonstration. testing: for users who test their functions
    faults load  the faults of a running topology; clients that write meanwhile and know what was acknowledged
    commands     verbs that are more than a call
    tracing      where a transaction is, and why it was taken or discarded
    deployment   starting, ending and querying a topology
    audit        who changed what with which command
    console      answers to people: tables, progress, exit codes
    simulation   whole topologies on in-memory databases, in virtual time
    (actors, spark_apply and topology stand here, beside this package)
    redo         the redo log: written, kept, mined
    databases    ports of databases, and their implementations
    (protos, the wire, stands here)
    rules        which changes are taken, and how they are changed
    links        the ends of a batch's journey: publishers, subscribers, and redo receivers
    status       what components report: typed, and as JSON at one border
    lcr          logical change records, and batches of them
    base         errors, clocks, files, failpoints

Each process keeps a synchronous core; `docs/architecture.md` shows how a change travels through them.
"""
