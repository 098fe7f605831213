"""Mining: the core of a capture process, which turns redo from a restart point on into LCR batches.

A capture process calls `miner`. It reads records (`redo_scan`, from `restart_point` on), keeps what the rules may keep
(`prefilter`, `names`, `mined_tables`, `ddl_log`) and cuts batches of it (`assembly`, `given_batches`). `key_search`
answers `headrace explain`.
"""
