"""Headrace: log-based replication that is steered by rules.

An import may only point down this list:

    cli          the command `headrace`: its verbs and options
    chaos demo   faults under load; the demonstration. testing: what users test their functions with
    faults load  what faults of a running topology are made of; clients that write meanwhile, and know what was acknowledged
    commands     what a verb does that is more than a call
    tracing      where a transaction is, and why it was taken or left out
    deployment   bringing a topology up and down, and asking it
    audit        who changed what with which command
    console      how a person is answered: tables, progress, exit codes
    simulation   whole topologies on databases in memory, in virtual time
    (actors, spark_apply and topology stand here, beside this package)
    redo         the redo log: written, kept, mined
    databases    ports of databases, and their implementations
    (protos, the wire, stands here)
    rules        which changes are taken, and how they are changed
    links        what a batch travels between: publishers, subscribers, and redo's receivers
    status       what components say of themselves: typed, and as JSON at one border
    lcr          logical change records, and batches of them
    base         errors, clocks, files, failpoints

Each process keeps a synchronous core; `docs/architecture.md` shows how a change travels through them.
"""
