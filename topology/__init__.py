"""What a topology file says, as data: no running code.

`file` turns YAML into `spec`, `checks` and `proof` judge it, `routing` knows over which components a table travels, `edits`
compares two files, `plan` says what `up` will do.
"""
