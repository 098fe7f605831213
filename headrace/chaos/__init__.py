"""`headrace chaos`: break a live topology on purpose, wait until it has healed, and check that nothing was harmed.

`command` is what the command line calls, `run` the way of one run. `schedule` draws what breaks, `faults` breaks it, by `headrace.faults`.
`load` writes meanwhile, `invariants` looks at what must hold, `report` says what was found.
"""
