"""Schemas, tables, columns, types and labels under hostile names: rows are copied, every kind of change is applied,
both sides are compared, and no name is executed.
"""

from __future__ import annotations

import pytest
from psycopg import sql

from headrace.rules.rule import Rule, RuleSet
from tests.support.copies.copied_pair import CopiedPair
from tests.support.values.hostile_names import HOSTILE

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

_TABLES = """
CREATE SCHEMA {n}; CREATE TYPE {n}.{kind} AS ENUM ({l}, 'last'); CREATE DOMAIN {n}.{domain} AS text CHECK (VALUE <> {l} || '!');
CREATE TABLE {n}.{n} ({n} int PRIMARY KEY, {c} text UNIQUE, {k} {n}.{kind}, {g} int GENERATED ALWAYS AS ({n} * 2) STORED, {d} {n}.{domain});
CREATE TABLE {n}.{keyless} ({n} int, {c} text); ALTER TABLE {n}.{keyless} REPLICA IDENTITY FULL;
CREATE TABLE {n}.{parted} ({n} int PRIMARY KEY, {c} text) PARTITION BY RANGE ({n});
CREATE TABLE {n}.{low} PARTITION OF {n}.{parted} FOR VALUES FROM (0) TO (20); CREATE TABLE {n}.{high} PARTITION OF {n}.{parted} DEFAULT;
CREATE TABLE {n}.{emptied} ({n} int PRIMARY KEY);
"""
_ROWS = """
INSERT INTO {n}.{n} ({n}, {c}, {k}, {d}) SELECT i, {l} || i, {l}, {l} FROM generate_series(1, 20) i;
INSERT INTO {n}.{keyless} SELECT i % 3, {l} FROM generate_series(1, 12) i;
INSERT INTO {n}.{parted} SELECT i, {l} FROM generate_series(1, 30) i;
INSERT INTO {n}.{emptied} VALUES (1)
"""
_CHANGES = (
    "INSERT INTO {n}.{n} ({n}, {c}, {k}, {d}) SELECT i, {l} || i, {l}, {l} FROM generate_series(21, 200) i",
    "INSERT INTO {n}.{n} ({n}, {c}) VALUES (1001, NULL)",
    "UPDATE {n}.{n} SET {c} = {c} || {l}, {k} = 'last' WHERE {n} % 3 = 0",
    "UPDATE {n}.{n} SET {n} = {n} + 5000 WHERE {n} % 7 = 0",
    # a value of the second unique key moves from one row to another
    "DELETE FROM {n}.{n} WHERE {n} = 1; INSERT INTO {n}.{n} ({n}, {c}) VALUES (2001, {l} || 1)",
    "DELETE FROM {n}.{n} WHERE {n} % 11 = 0",
    "INSERT INTO {n}.{keyless} SELECT i % 4, {l} FROM generate_series(1, 8) i",
    "UPDATE {n}.{keyless} SET {c} = {l} || '?' WHERE {n} = 1",
    "DELETE FROM {n}.{keyless} WHERE {n} = 2",
    "UPDATE {n}.{parted} SET {n} = {n} + 100 WHERE {n} < 5",
    "DELETE FROM {n}.{parted} WHERE {n} > 25 AND {n} < 50",
    "TRUNCATE {n}.{emptied}",
)
_TABLE_KINDS = ("n", "keyless", "parted", "emptied")


def _names(name: str) -> dict[str, sql.Composable]:
    """Return the names for the fields of the statements: one name everywhere, and different ones of the same length."""

    def other(end: str) -> sql.Identifier:
        return sql.Identifier(name.encode()[: 63 - len(end)].decode(errors="ignore") + end)

    others = ("c", "k", "g", "d", "kind", "domain", "keyless", "parted", "low", "high", "emptied")
    return {**{key: other(f"_{key}") for key in others}, "n": sql.Identifier(name), "l": sql.Literal(name)}


def _statement(text: str, name: str) -> str:
    return sql.SQL(text).format(**_names(name)).as_string(None)


@pytest.fixture
def pair(copied_pair: CopiedPair) -> CopiedPair:
    return copied_pair


def test_rows_of_tables_with_hostile_names_are_copied_changed_and_compared(pair: CopiedPair):
    pair.rules = RuleSet(include=tuple(Rule(owner=name) for name in HOSTILE))
    tables = "".join(_statement(_TABLES, name) for name in HOSTILE)
    pair.create(tables, tables)
    pair.run(*(_statement(_ROWS, name) for name in HOSTILE))
    assert pair.errors_found() == []
    states = pair.copy()
    assert len(states) == len(HOSTILE) * len(_TABLE_KINDS)
    assert {state for state, _ in states.values()} == {"DONE"}, states
    pair.attach()
    for text in _CHANGES:
        pair.run(*(_statement(text, name) for name in HOSTILE))
    pair.apply(rules=pair.rules, instantiation=pair.starts())
    assert pair.errors() == ()
    compared = pair.verify()
    assert len(compared) == len(states)
    assert [name for name, each in compared.items() if not each.is_equal] == []
    for name in HOSTILE:
        for kind in _TABLE_KINDS:  # the verifier must not be the only check
            pair.assert_same(_statement(f'SELECT t.* FROM {{n}}.{{{kind}}} t ORDER BY t::text COLLATE "C"', name))
        ((left,),) = pair.there.execute(_statement("SELECT count(*) FROM {n}.{n}", name)).fetchall()
        assert left > 100
    for site in (pair.redo.user, pair.there):
        assert site.execute("SELECT count(*) FROM pg_class WHERE relname = 'taken'").fetchone() == (0,)
