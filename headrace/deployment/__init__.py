"""A topology file and what runs of it: bringing it up and down, waiting for it, and asking it.

`deployment` has the calls that the verbs make, `inspection` what is found of a file and its databases before anything runs, `refusals`
what `up` does not begin with, `waiting` and `failures` what `up` looks at until all runs, `endings` how components end, and `removal`
what `down --purge` removes.
"""
