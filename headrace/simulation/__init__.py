"""Deterministic simulation of whole topologies: the real cores on databases in memory, in virtual time, under faults.

`run` is what the command calls; it makes a `world` for each seed. `components`, `apply_process` and `downstream` host
the real cores and know only their `surroundings`. `network` connects them, and `database` is below them. `workload` and
`contested` define what users write. `operator`, `splits` and `faults` act on what is `running`. `checking` has the
checks, and `observing` the records that they compare.
"""
