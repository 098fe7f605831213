"""Where a transaction, or a row's change, went and where it stopped: `headrace track` and `headrace explain`.

`track` asks every component and `following` puts its answers together; `explain` finds out everything about one row, `causes` why it is
missing or different.
"""
