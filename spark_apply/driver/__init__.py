"""The driver of an apply process.

`apply_driver` is the whole driver. `reader` (with `reading`) and `coordinator` (with `groups`) are its cores; `loop`
runs them. `server_streams` and `gate` are the apply servers' side; `control` answers the actor. Copies of tables call
the loop through `join_calls`.
"""
