"""Certificates of the sites, and their use on the wire.

`authority` makes certificates for tests and small set-ups, `examination` examines those that a topology file names, `upkeep` and `renewal`
renew them. `wire` determines whom a site's components connect to and whom they admit.
"""
