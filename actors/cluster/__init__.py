"""The private Ray cluster of a topology on one machine."""
