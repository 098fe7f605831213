"""What writes into databases while something breaks or is measured, and how it is proven that all of it arrived.

`headrace chaos`, the demo, the tests and the benchmark write with these: clients that know what was acknowledged to
them, pgbench, and the sums and digests by which two databases are compared. They are clients, as applications are: they
know PostgreSQL, and nothing of replication.
"""
