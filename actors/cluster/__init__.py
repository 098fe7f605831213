"""The Ray cluster: the private one of a topology on one machine, and the nodes of the user's own."""
