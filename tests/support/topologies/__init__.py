"""Topology files: written, made at random, run in virtual time, and planted defects of the product."""
