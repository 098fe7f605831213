"""Functions that users write in Python: handlers, custom transformations.

Which file, which version, and how they are loaded.
"""
