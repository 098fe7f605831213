"""Row LCRs as SQL."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.lcr.row_lcr import RowLcr
from headrace.testing import Table, row_lcr

TABLE = Table(name='hr."e', columns={"id": "int4", "name": "text", "doc": "json"}, logs_old_rows=True)
KEYED = Table(name="hr.e", columns={"id": "int4", "name": "text"}, logs_old_rows=False)
INSERT = row_lcr(TABLE, "INSERT", new={"id": 1, "name": "a", "doc": {}})
UPDATE = row_lcr(TABLE, "UPDATE", old={"id": 1, "name": "a"}, new={"id": 1, "name": None})
DELETE = row_lcr(TABLE, "DELETE", old={"id": 1})


def shown(found: tuple[str, Any]) -> tuple[str, list[object]]:
    return found[0], [value.decoded for value in found[1]]


@pytest.mark.parametrize(
    ("lcr", "text", "values"),
    [
        (INSERT, '"id" = $1 AND "name" = $2', [1, "a"]),
        (UPDATE, '"id" = $1 AND "name" IS NULL', [1]),
        (DELETE, '"id" = $1 AND "name" IS NULL', [1]),
        (row_lcr(KEYED, "UPDATE", old={"id": 1}, new={"id": 2, "name": "b"}), '"id" = $1 AND "name" = $2', [2, "b"]),
    ],
)
def test_where_clause_finds_the_row_of_the_change(lcr: RowLcr, text: str, values: list[object]) -> None:
    assert shown(lcr.get_where_clause()) == (text, values)


@pytest.mark.parametrize(
    ("lcr", "text", "values"),
    [
        (INSERT, 'INSERT INTO "hr"."""e" ("id", "name", "doc") VALUES ($1, $2, $3)', [1, "a", {}]),
        (UPDATE, 'UPDATE "hr"."""e" SET "name" = $1 WHERE "id" = $2 AND "name" = $3', [None, 1, "a"]),
        (DELETE, 'DELETE FROM "hr"."""e" WHERE "id" = $1 AND "name" IS NULL', [1]),
        (
            row_lcr(KEYED, "UPDATE", new={"id": 2, "name": "b"}),
            'UPDATE "hr"."e" SET "name" = $1 WHERE "id" = $2',
            ["b", 2],
        ),
        (
            row_lcr(KEYED, "UPDATE", old={"id": 1}, new={"id": 2, "name": "b"}),
            'UPDATE "hr"."e" SET "id" = $1, "name" = $2 WHERE "id" = $3',
            [2, "b", 1],
        ),
    ],
)
def test_row_text_is_the_change(lcr: RowLcr, text: str, values: list[object]) -> None:
    assert shown(lcr.get_row_text()) == (text, values)


def test_placeholders_begin_at_the_given_number() -> None:
    assert INSERT.get_where_clause(first=3)[0] == '"id" = $3 AND "name" = $4'
