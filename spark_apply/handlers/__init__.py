"""Execution of users' handlers: called for row LCRs inside an apply server's transaction."""
