"""What the coordinator of an apply process and its servers say to each other.

`groups` has what is said, `messages` puts it on the wire.
"""
