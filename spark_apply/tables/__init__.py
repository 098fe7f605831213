"""The tables of an apply process: whether the source's fit the destination's, what arrives, and what is copied.

`fits` compares a table's versions with the destination's, `arriving` has the tables that changes arrive for, `copied`
what a copy has already brought.
"""
