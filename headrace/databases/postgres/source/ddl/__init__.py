"""DDL at a source: what records it in users' transactions, and what keeps the records.

`objects` has the schema `headrace_ddl` and its event triggers, `publishing` adds new tables to the publication. `capture`
plans, repairs and removes all of it, with `rules`, `rights`, `watching` and `compared`; `trimming` removes old records.
"""
