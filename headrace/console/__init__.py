"""Answers to people: tables and lines (`output`), progress of long commands, the short form of `status`, exit codes."""
