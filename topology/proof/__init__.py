"""Proof of who gets what: it follows every change over the ways, and finds what is wrong with where it ends.

`reach` is the proof, over `hops`. `findings` has what `check` reports, in the `words` of the file: `duplicates`, tables
where sites may disagree (`meetings`), and handlers that compare the wrong sites (`neighbours`).
"""
