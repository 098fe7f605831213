"""Histories: writers, the order of their writes, by hand or at random, and the expected result."""
