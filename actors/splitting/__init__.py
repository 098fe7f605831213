"""Splitting streams off and merging them, by the controller.

`phases` decides when and whether it is safe, by `facts`; `split_edits` records the result and cleans up.
"""
