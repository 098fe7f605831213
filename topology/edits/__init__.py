"""Edits of a topology: what changes between two versions of its file, and what is kept of the last one."""
