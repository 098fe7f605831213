"""When two key values count as the same: canonical forms of values, and their hashes.

`equality` has the canonical form of each type, `hash_kernels` hashes values in that form, and `relations` finds the
columns by which rows of different tables depend on each other.
"""
