"""Conversation between the coordinator of an apply process and its servers.

`groups` defines the messages, `messages` converts them for the wire.
"""
