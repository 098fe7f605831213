"""The topology file: its text, its shape, its short forms, read into a `topology.spec.TopologySpec`."""
