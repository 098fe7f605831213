"""PostgreSQL as a source and as a destination. An import may only point down this list.

    destination   sessions of apply servers, what they write, the error queue; `database` implements the port
    source        the slot, the log stream and its decoder; `database` implements the port
    copying       tables read and written in pieces, and their digests
    compared      whether a source's tables fit a destination's
    catalog       the catalogs' descriptions of tables, on either side
    values        values of LCRs: for people, for users' code, for conditions
    (`connection`, `pipeline` and the other modules here handle sessions and servers, not tables)

PostgreSQL's own terms (LSN, slot, publication, origin) are used only in here.
"""
