"""Conditions of rules: parsed, checked, and evaluated on whole columns or row by row.

`parsing` turns SQL into `nodes`, `spelling` turns them back. `compiled` evaluates on columns, `rowwise` on one row,
both with the three-valued logic of `logic`. `attributes` and `values` define what a condition can read and compare.
"""
