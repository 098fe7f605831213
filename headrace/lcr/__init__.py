"""Logical change records (LCRs): one change of one row each, in columns from capture to apply.

`batch` is how they travel, `values` and `cells` have the values in it. `row_lcr` is how rules and users see one row, `lcr_value` one value
of it, `text` the change as SQL. `cutting` is the one place that cuts batches, `building` makes batches of LCRs. `scn` has positions in a
source's log, `tracking` the labels of transactions that users follow.
"""
