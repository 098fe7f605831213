"""Users' handlers at work: called for row LCRs inside an apply server's transaction."""
