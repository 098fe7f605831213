"""The topology file: its text, its shape, its short forms, read into a `topology.spec.TopologySpec`.

`reading` is the way in. `document` reads YAML with the line of every value, `shape` says what keys there are and what they hold,
`shorthand` expands `replicate:`, and the other modules read one part of the file each. Secrets are resolved here and nowhere else
(`secret_sources`).
"""
