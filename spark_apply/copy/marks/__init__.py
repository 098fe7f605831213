"""Marks of tables: they reveal rows that changed without events, for example by ALTER TABLE."""
