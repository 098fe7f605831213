"""Deterministic simulation of whole topologies: the real cores on databases in memory, in virtual time, under faults."""
