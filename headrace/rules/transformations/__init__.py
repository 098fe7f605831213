"""Transformations of positive rules: what is declared, users' functions behind it, and both done to batches.

`transformation` and `custom` are frozen data; `reshaping` makes batches of another shape, `calling` calls the functions.
"""
