"""The log of a PostgreSQL source as a stream: the slot, START_REPLICATION on the wire, and the decoder of pgoutput.

`slot` creates and checks the slot, `replication_stream` reads from it in gulps (`replication_wire`), `pgoutput` decodes
the result. `lsn`, `transactions`, `waits` and `decoding_memory` handle the server's positions, its transactions, who
blocks Headrace, and the server's memory for decoding.
"""
