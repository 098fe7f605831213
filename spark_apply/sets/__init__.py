"""Transactions of a group as sets of rows, and the conflicts of these rows.

`collapse` plans one write per row and table of a group; `steps`, `table_rows` and `set_writes` are its parts.
`conflicts` executes these writes. `resolution`, `decisions` and `latest` resolve what conflicts. `row_sets` and
`row_images` are the rows.
"""
