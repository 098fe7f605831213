"""Writers for databases under faults or measurement, and proofs that everything they wrote arrived.

`headrace chaos`, the demo, the tests and the benchmark write with these: clients that know which commits were
acknowledged, pgbench, and the sums and digests by which two databases are compared. They are clients, as applications
are: they know PostgreSQL, and nothing of replication.
"""
