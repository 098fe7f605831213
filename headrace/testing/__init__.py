"""Tests of user code, with pytest and without a server: conditions, subset rules, transformations, handlers.

    from headrace.testing import Destination, Rules, Table, row_lcr, transform

The production code runs, and gives the same results: `tests/unit/headrace/testing/test_differential.py`.
docs/reference/testing.md has examples. The database is in memory: types are read and written as PostgreSQL does, and the test
answers the SQL of handlers.
"""

from headrace.testing.destination import Destination, StatementTables
from headrace.testing.evaluation import Rules, transform
from headrace.testing.lcrs import Table, row_lcr, values_of

__all__ = ["Destination", "Rules", "StatementTables", "Table", "row_lcr", "transform", "values_of"]
