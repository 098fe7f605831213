"""Rules: which changes a client takes, and how it transforms them.

All clients evaluate them alike: capture, propagation, apply.

`rule` has rules and rule sets, `evaluation` and `row_evaluation` apply them to a batch, `subsetting` has row migration,
`needs` the columns that rules read. `conditions` and `transformations` are sub-packages. Frozen data of an apply
process is here, too: `table_settings`, `conflict_handlers`, `virtual_dependencies`, and users' functions (`user_code`).
"""
