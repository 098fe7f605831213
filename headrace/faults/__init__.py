"""Building blocks for faults in a running topology: its processes, the links between its sites, and proxies in them.

`headrace chaos`, the demo and the tests break topologies only with these: this package alone finds and kills processes
and cuts links. `headrace.simulation` has its own faults: it has no process, server or connection to break.
"""
