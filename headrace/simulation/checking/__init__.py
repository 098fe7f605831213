"""Checks of a simulated topology while it runs: after every commit, and at the end."""
