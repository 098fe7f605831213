"""What runs in the driver of an apply process.

`apply_driver` is the whole of it: `reader` (with `reading`) and `coordinator` (with `groups`) are its cores, `loop` runs
them, `server_streams` and `gate` have the apply servers' side, `control` answers the actor. Copies of tables ask the loop
through `join_calls`.
"""
