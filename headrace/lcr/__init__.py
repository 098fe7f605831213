"""Logical change records (LCRs): one change of one row each, in columns from capture to apply.

`batch` is their form in transport, `values` and `cells` have the values in it. `row_lcr` is one row as rules and users
see it, `lcr_value` one value of it, `text` the change as SQL. `cutting` is the one place that cuts batches, `building`
makes batches of LCRs. `scn` has positions in a source's log, `tracking` the labels of transactions that users follow.
"""
