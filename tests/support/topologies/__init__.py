"""Topology files: written, made at random, run in virtual time, and the product with small defects planted in it."""
