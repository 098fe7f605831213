"""Headrace: rule-based, log-based replication.

An import may only point down this list:

    cli          the command `headrace`: its verbs and options
    chaos demo   faults under load; the demonstration. testing: what users test their functions with
    faults load  building blocks for faults in a running topology; clients that write and record what was acknowledged
    commands     the verbs that are more than one call
    tracing      where a transaction is, and why rules took or discarded it
    deployment   bringing a topology up and down, and querying it
    audit        who changed what with which command
    console      output for the operator: tables, progress, exit codes
    simulation   whole topologies on databases in memory, in virtual time
    (actors, spark_apply and topology stand here, beside this package)
    redo         the redo log: writing, keeping and mining it
    databases    ports of databases, and their implementations
    (protos, the wire, stands here)
    rules        which changes are taken, and how they are transformed
    links        the two ends of a stream of batches or redo: publishers, subscribers, redo receivers
    status       component statuses: typed, and as JSON at one border
    lcr          logical change records, and batches of them
    base         errors, clocks, files, failpoints

Each process keeps a synchronous core; `docs/how/architecture.md` shows how a change travels through them.
"""
