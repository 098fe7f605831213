"""`headrace track` and `headrace explain`: where a transaction, or a row's change, went and where it stopped.

`track` asks every component, and `following` combines their answers. `explain` collects everything about one row, and
`causes` determines why it is missing or different.
"""
