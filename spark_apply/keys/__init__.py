"""What counts as the same key: canonical forms of values, and their hashes.

`equality` has the canonical form of each type, `hash_kernels` hashes values in it, `relations` finds the columns whose values
the rows of several tables share.
"""
