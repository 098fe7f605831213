"""Tests of what users program, with pytest and without a server: conditions, subset rules, transformations, handlers.

    from headrace.testing import Destination, Rules, Table, row_lcr, transform

The code that runs is the one that runs live, and what it gives is the same:
`tests/unit/headrace/testing/test_differential.py`. docs/testing.md has examples. Of a database there is only memory:
types are read and written as PostgreSQL does, and SQL of handlers is answered by the test.
"""

from headrace.testing.destination import Destination, StatementTables
from headrace.testing.evaluation import Rules, transform
from headrace.testing.lcrs import Table, row_lcr, values_of

__all__ = ["Destination", "Rules", "StatementTables", "Table", "row_lcr", "transform", "values_of"]
