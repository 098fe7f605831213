"""Logical change records (LCRs): one change of one row each, in columns from capture to apply.

`batch` is how they travel, `row_lcr` is how rules and users see one of them, `cutting` is the one place that cuts batches, `building`
makes batches of LCRs. `scn` has positions in a source's log, `tracking` the labels of transactions that users follow.
"""
