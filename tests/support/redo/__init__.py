"""Redo logs, made by hand, from a memory source or from a real server, and processes that capture and receive them."""
