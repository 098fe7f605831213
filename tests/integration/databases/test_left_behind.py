"""The statements that `down --purge --lost` prints leave nothing of a topology in a database."""

from __future__ import annotations

from contextlib import closing

import pytest

from headrace.databases.connectors import removal_by_hand
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.statements import execute

pytestmark = pytest.mark.postgres

LEFT = """SELECT slot_name FROM pg_replication_slots WHERE database = current_database()
UNION ALL SELECT pubname FROM pg_publication
UNION ALL SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'headrace%'
UNION ALL SELECT nspname FROM pg_namespace WHERE nspname LIKE 'headrace%'"""


def test_printed_statements_remove_everything_and_can_be_repeated(source_database: str) -> None:
    execute(source_database, "CREATE TABLE t (id integer PRIMARY KEY)")
    rules = (RuleSet(include=(Rule(owner="public", name="*", ddl=True),)),)
    with closing(PostgresSource(source_database, site="a")) as source:
        source.prepare("mine", rules)
    with closing(PostgresDestination(source_database, site="a")) as destination:
        destination.prepare("mine")
    before = [name for (name,) in execute(source_database, LEFT)]
    assert {"headrace", "headrace_ddl"} <= set(before)
    statements = removal_by_hand("postgres", "mine", "a", is_source=True, is_destination=True, has_ddl=True)
    for _ in range(2):
        for statement in statements:
            execute(source_database, statement)
    assert execute(source_database, LEFT) == []
    execute(source_database, "CREATE TABLE u (id integer PRIMARY KEY); INSERT INTO u VALUES (1)")
