"""Rules: which changes a client takes, and what it makes of them. Every client evaluates them alike: capture, propagation, apply.

`rule` has rules and rule sets, `evaluation` and `row_evaluation` what they leave of a batch, `subsetting` row migration, `needs` which
columns they read. `conditions` and `transformations` are rooms. Frozen data of an apply process is here, too: `table_settings`,
`conflict_handlers`, `virtual_dependencies`, and users' functions (`user_code`).
"""
