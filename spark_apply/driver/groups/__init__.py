"""Decisions of an apply coordinator about groups of transactions.

`forming` and `next_group` form groups. `formed_group` has the states of one group, `unfinished_groups` has all of them.
`handout` assigns groups to servers (`server_slots`), and `replay` drops groups to read them again. `watermarks` moves
the positions. `known_errors` and `executions` have the error queue, `labelled` the transactions that users follow.
"""
