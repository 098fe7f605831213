"""Topology files as data: no running code.

`file` turns YAML into `spec`. `checks` and `proof` judge the result. `routing` knows the components over which a table
travels. `edits` compares two files, and `plan` says what `up` will do.
"""
