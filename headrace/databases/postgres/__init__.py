"""PostgreSQL as a source and as a destination. An import may only point down this list.

    destination   sessions of apply servers, what they write, the error queue; `database` is the port
    source        the slot, the log stream and its decoder; `database` is the port
    copying       tables read and written in pieces, and digests of them
    compared      whether a source's tables fit a destination's
    catalog       what the catalogs say of tables, on either side
    values        values of LCRs: for people, for users' code, for conditions
    (`connection`, `pipeline` and the other modules here know sessions and servers, no tables)

PostgreSQL's own words (LSN, slot, publication, origin) stay in here.
"""
