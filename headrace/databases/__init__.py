"""What Headrace needs of a database: ports and their implementations.

`ports` defines the contracts, `postgres` and `memory` implement them (`tests/contract` runs one suite on both),
`connectors` chooses by kind, `embedded` runs bundled servers. The other modules work on what ports describe: conflict
lists, dependency columns, timelines, progress.
"""
