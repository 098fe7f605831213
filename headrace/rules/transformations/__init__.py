"""Transformations of positive rules: declarative ones and users' functions, and their application to batches.

`transformation` and `custom` are frozen data; `reshaping` applies them to batches, `calling` calls the functions.
"""
