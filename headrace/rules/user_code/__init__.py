"""Functions that users write in Python: handlers and custom transformations.

`loading` loads them the same way in every process, `source` says which version they are, `handlers` and `binds` what is called where.
A call is bounded: `time_limit`, `threads`, and `last_call`, which outlives the process.
"""
