"""A unique key that the source checks after the statement: `check` explains the effect, and the statement that it
prints works.
"""

from __future__ import annotations

import psycopg
import pytest

from headrace.databases.ports import Finding
from tests.support.redo.postgres_redo import RULES
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

THERE = "CREATE TABLE p (id int PRIMARY KEY, v int, UNIQUE (v))"
HERE = THERE.replace("(v))", "(v) DEFERRABLE INITIALLY DEFERRED)")
EXCHANGES = [
    "UPDATE p SET v = 11 - v",
    "UPDATE p SET v = v + 1",
    "BEGIN; UPDATE p SET v = 3 WHERE id = 1; UPDATE p SET v = 11 WHERE id = 3; COMMIT",
]


def found(pair: Pair, *, may_be_copied: bool = True) -> list[Finding]:
    return [
        each
        for each in pair.redo.source.preflight(
            (RULES,), streams=1, may_be_copied=lambda table: may_be_copied and table.name == "p"
        )
        if "DEFERRABLE" in each.problem
    ]


@pytest.mark.parametrize("statement", EXCHANGES)
def test_check_names_the_key_and_a_transaction_that_swaps_values_fails(pair: Pair, statement: str) -> None:
    pair.create(HERE, THERE)
    (finding,) = found(pair)
    assert finding.path.endswith("table public.p")
    assert "p_v_key" in finding.problem
    assert not finding.is_error
    pair.run("INSERT INTO p SELECT g, g FROM generate_series(1, 10) g", statement)
    pair.apply()
    assert pair.errors(), "the effect that check announces does not occur"


def test_the_printed_statement_makes_the_key_immediate(pair: Pair) -> None:
    pair.create(HERE, THERE)
    (finding,) = found(pair)
    pair.run(finding.fix.partition(";")[0])
    assert found(pair) == []
    pair.run("INSERT INTO p SELECT g, g FROM generate_series(1, 10) g")
    with pytest.raises(psycopg.errors.UniqueViolation):
        pair.run(EXCHANGES[0])


def test_table_that_others_write_is_not_to_be_copied(pair: Pair) -> None:
    """`headrace copy` refuses it."""
    pair.create(HERE, THERE)
    (finding,) = found(pair, may_be_copied=False)
    assert "headrace copy" not in finding.fix
    assert finding.fix.endswith(
        "headrace errors delete FILE NUMBER, then headrace verify FILE public.p and the fix that it prints"
    )
    (finding,) = found(pair)
    assert "headrace copy FILE public.p" in finding.fix
    assert "errors delete" not in finding.fix
