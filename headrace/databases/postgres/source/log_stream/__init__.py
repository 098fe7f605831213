"""The log of a PostgreSQL source as a stream: the slot, START_REPLICATION on the wire, and the decoder of pgoutput.

`slot` makes and keeps the slot, `replication_stream` reads from it in gulps (`replication_wire`), `pgoutput` decodes what was read. `lsn`,
`transactions`, `waits` and `decoding_memory` are what the server says of positions, transactions, and who holds up or holds what.
"""
