"""Proof of who gets what: every change followed over the ways, and what is wrong with where it ends."""
