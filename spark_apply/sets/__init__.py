"""Transactions of a group as sets of rows, and the conflicts of these rows.

`collapse` makes one write per row and table of a group (`steps`, of `table_rows` and `set_writes`), `conflicts` executes these
writes, `resolution`, `decisions` and `latest` resolve what does not fit; `row_sets` and `row_images` are the rows.
"""
