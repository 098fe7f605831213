"""PostgreSQL as a source and as a destination.

`source` has the slot, pgoutput and the catalog, `destination` sessions, writes and the error queue, `table_copy` tables in
pieces; the other modules are what both sides share: types, shapes, values, connections. PostgreSQL's own words (LSN, slot,
publication, origin) stay in here.
"""
