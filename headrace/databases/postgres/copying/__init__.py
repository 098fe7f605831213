"""Tables in pieces: read and written (`table_copy`), with a digest of each row (`row_text`), and looked at again by key."""
