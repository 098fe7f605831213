"""The shape of the topology file: what may stand where, and what is said of anything else. pydantic stays in this room.

`values` has single values, `models` the keys of each section, `findings` turns pydantic's errors into findings.
"""
