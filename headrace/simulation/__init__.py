"""Deterministic simulation of whole topologies: the real cores on databases in memory, in virtual time, under faults.

`run` is what the command calls; it makes a `world` for each seed. `components`, `apply_process` and `downstream` host the real cores and
know only their `surroundings`, `network` is between them, `database` below them. `workload` and `contested` are what users write.
`operator`, `splits` and `faults` act on what is `running`. `checking` says what must be true of it, `observing` has what that is made of.
"""
