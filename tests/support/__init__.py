"""What several suites share, in rooms: import it as `tests.support.<room>.<module>`.

| room | what |
|---|---|
| `session` | the session itself: lanes' reports, seeds, units, what it may leave behind; the project's packages |
| `topologies` | topology files, and runs of them in virtual time |
| `values` | rows, values, names, conditions and messages, made by hand or at random |
| `histories` | who writes what in which order, and what must come of it |
| `databases` | databases in memory and real servers, with their settings, sessions and standbys |
| `redo` | redo logs, and what captures from them |
| `wire` | queues, links, certificates and attackers |
| `apply` | an apply process and its parts, with and without Spark |
| `copies` | copies of tables, and marks of their rows |
| `actors` | components, controllers and overviews, without Ray |
| `ways` | several sites on real servers in the test's own process, without Ray and Spark |
| `clusters` | whole topologies on Ray and Spark, on one machine or several, and their faults |
"""
