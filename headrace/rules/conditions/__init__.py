"""Conditions of rules: parsed, checked, and evaluated on whole columns or row by row.

`parsing` makes `nodes` of SQL, `spelling` SQL of them. `compiled` evaluates on columns, `rowwise` on one row, both by the three truths of
`logic`. `attributes` and `values` are what a condition can ask for and compare.
"""
