"""Proof of who gets what: every change followed over the ways, and what is wrong with where it ends.

`reach` is the proof, over `hops`. `findings` has what `check` reports, in the `words` of the file: `duplicates`, tables where sites may
disagree (`meetings`), and handlers that compare the wrong sites (`neighbours`).
"""
