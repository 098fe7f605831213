"""`headrace chaos`: break a live topology on purpose, wait until it has healed, and check that it took no harm.

`command` is the entry from the command line, and `run` the course of one run. `schedule` draws faults, and `faults`
makes them with `headrace.faults`. `load` writes meanwhile, `invariants` checks overviews, and `report` has the results.
"""
