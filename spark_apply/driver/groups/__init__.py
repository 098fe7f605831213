"""What an apply coordinator decides about groups of transactions.

`forming` and `next_group` form them, `formed_group` has the states of one, `unfinished_groups` all of them; `handout` gives them to
servers (`server_slots`), `replay` drops them to read them again, `watermarks` moves the positions; `known_errors` and `executions`
have the error queue, `labelled` the transactions that users follow.
"""
