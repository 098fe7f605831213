"""What Headrace needs of a database: ports, and who implements them.

`ports` has the promises, `postgres` and `memory` keep them (`tests/contract` runs one suite on both), `connectors` chooses by kind,
`embedded` runs bundled servers. The other modules judge what ports describe: conflict lists, dependency columns, timelines, progress.
"""
