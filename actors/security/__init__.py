"""Certificates of the sites: making them for tests and small set-ups, and examining those that a topology file names."""
