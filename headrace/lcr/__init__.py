"""Logical change records (LCRs): one change of one row each, in columns from capture to apply, or of one table.

`batch` is their form in transport, `values` and `cells` have the values in it. `row_lcr` is one row as rules and users
see it, `lcr_value` one value of it, `text` the change as SQL. `ddl` is the change of a table's structure, `ddl_lcr`
that change as users see it, `ddl_record` its content with the table's `structure` before and after. `lcr_view` is what
both kinds of LCRs have in common. `cutting` is the one place that cuts batches, `building` makes batches of LCRs. `scn`
has positions in a source's log, `tracking` the labels of transactions that users follow.
"""
