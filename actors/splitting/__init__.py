"""Splitting streams off and merging them: when, and in which steps."""
