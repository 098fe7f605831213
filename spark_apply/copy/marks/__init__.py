"""Marks of tables: how rows that changed without events, such as by ALTER TABLE, are found."""
