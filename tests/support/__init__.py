"""Support shared by several suites, by topic: import it as `tests.support.<topic>.<module>`.

| topic | contents |
|---|---|
| `session` | the test session: lanes' reports, seeds, units, permitted leftovers; the project's packages |
| `topologies` | topology files, and runs of them in virtual time |
| `values` | rows, values, names, conditions and messages, made by hand or at random |
| `histories` | writers, the order of their writes, and the expected result |
| `databases` | memory databases and real servers, with their settings, sessions and standbys |
| `redo` | redo logs, and capture processes that read them |
| `wire` | queues, links, certificates and attackers |
| `apply` | an apply process and its parts, with and without Spark |
| `copies` | copies of tables, and marks of their rows |
| `actors` | components, controllers and overviews, without Ray |
| `ways` | several sites on real servers in the test's process, without Ray and Spark |
| `clusters` | whole topologies on Ray and Spark, on one machine or several, and their faults |
"""
