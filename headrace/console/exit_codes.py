"""The exit codes of the command `headrace`. Imports nothing: it is loaded before Ctrl-C is caught."""

from __future__ import annotations

__all__ = ["DONE", "FAILURE", "FINDING", "INTERRUPTED", "WRONG_USE"]

DONE = 0
FINDING = 1  # a difference, a problem of the topology or of a database, something that needs an operator
WRONG_USE = 2
FAILURE = 3
INTERRUPTED = 130  # as shells report a program ended by Ctrl-C
