"""The shape of the topology file: its allowed keys and values, and messages about all others.

Only this package uses pydantic.

`values` has single values, `models` the keys of each section, `findings` turns pydantic's errors into findings.
"""
