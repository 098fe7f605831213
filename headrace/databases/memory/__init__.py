"""Databases in memory, a source and a destination: what simulation and tests run on."""
