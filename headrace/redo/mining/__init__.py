"""Mining: redo from a restart point on becomes LCR batches, the core of a capture process.

`miner` is what a capture process calls. It reads records (`redo_scan`, from `restart_point` on), keeps what the rules may keep
(`prefilter`, `names`, `mined_tables`) and cuts batches of it (`assembly`, `given_batches`). `key_search` answers `headrace explain`.
"""
