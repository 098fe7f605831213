"""Queues and propagations: their cores, and the hosts that run them."""
