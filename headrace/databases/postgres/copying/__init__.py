"""Tables read and written in pieces (`table_copy`), with a digest of each row (`row_text`), and rechecked by key."""
