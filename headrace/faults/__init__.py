"""What faults of a running topology are made of: its processes, the links between its sites, and proxies in them.

`headrace chaos`, the demo and the tests break topologies with these, and with nothing else: how a process is found and
killed, and how a link is cut, is written here alone. The faults of `headrace.simulation` are others: there is no
process, no server and no connection that they could break.
"""
