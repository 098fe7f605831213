"""Histories: who writes what in which order, by hand or at random, and what must come of it."""
