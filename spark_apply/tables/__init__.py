"""The tables of an apply process: how they fit the destination's, which ones changes arrive for, and what is copied.

`fits` compares table versions with the destination's tables, `arriving` finds the table that a change belongs to,
and `copied` removes changes that a copy already contains.
"""
