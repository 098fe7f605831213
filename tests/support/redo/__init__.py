"""Redo logs, made by hand, from a source in memory or from a real server, and what captures and receives them."""
