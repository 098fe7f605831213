"""Functions that users write in Python: handlers and custom transformations.

`loading` loads them the same way in every process, `source` computes their versions, `handlers` and `binds` declare
what is called where. Calls are bounded by `time_limit`, `threads`, and `last_call`, which outlives the process.
"""
