"""Structures of tables: what is read, what counts as the same part, and what a change did to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from headrace.base.errors import ProtocolError
from headrace.lcr.structure import (
    ColumnPart,
    ConstraintPart,
    Delta,
    IndexPart,
    PartKind,
    PartName,
    Structure,
    elements,
    structure_from_json,
)
from headrace.lcr.table_name import quoted
from tests.support.values.ddl_changes import column, index, structure
from tests.support.values.hostile_names import names


def table(*parts: ColumnPart | ConstraintPart | IndexPart) -> Structure:
    return Structure(
        owner="hr",
        name="jobs",
        columns=tuple(part for part in parts if isinstance(part, ColumnPart)),
        constraints=tuple(part for part in parts if isinstance(part, ConstraintPart)),
        indexes=tuple(part for part in parts if isinstance(part, IndexPart)),
    )


def col(number: int, name: str, type_name: str = "integer", **attributes: Any) -> ColumnPart:
    return ColumnPart(number=number, name=name, type_name=type_name, **attributes)


def check(number: int, name: str, definition: str = "CHECK ((id > 0))") -> ConstraintPart:
    return ConstraintPart(number=number, name=name, type="c", definition=definition)


def idx(number: int, name: str, columns: str = "id") -> IndexPart:
    return IndexPart(number=number, name=name, definition=f"CREATE INDEX {name} ON hr.jobs USING btree ({columns})")


def test_structure_is_read_from_text_bytes_and_objects() -> None:
    written = structure(
        column(1, "id", not_null=True),
        column(3, "größe", "text", collation='"C"', default="'x'::text", not_valid=True),
        constraints=[{"number": 9, "name": "k", "type": "c", "definition": "CHECK ((id > 0))", "calls": True}],
        indexes=[index(7, "by_job")],
        children=2,
    )
    found = structure_from_json(written)
    assert found == structure_from_json(json.dumps(written)) == structure_from_json(json.dumps(written).encode())
    assert (found.owner, found.name, found.children) == ("hr", "jobs", 2)
    assert found.columns[1].shape == ("text", '"C"', False, True, "'x'::text", "", "")
    assert [str(key) for key in elements(found)] == [
        'column "id"',
        'column "größe"',
        'constraint "k"',
        'index "by_job"',
    ]
    assert found.constraints[0].calls


@pytest.mark.parametrize(
    "damaged",
    ["", "[]", "{}", "null", "[" * 100_000, structure() | {"columns": [{}]}, structure() | {"name": None}],
    ids=["empty", "list", "nothing", "null", "deep", "column without a name", "table without a name"],
)
def test_damaged_structure_is_refused_with_one_error(damaged: str | dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="damaged"):
        structure_from_json(damaged)


@pytest.mark.seeded
@given(names(), names())
def test_index_has_the_same_shape_under_every_name(one: str, other: str) -> None:
    shapes = {
        IndexPart(
            number=1, name=name, definition=f"CREATE UNIQUE INDEX {quoted(name)} ON hr.jobs USING btree (id)"
        ).shape
        for name in (one, other)
    }
    assert len(shapes) == 1


def test_unique_index_has_another_shape_than_a_plain_one() -> None:
    plain = idx(1, "by_job")
    unique = IndexPart(number=1, name="by_job", definition=plain.definition.replace("INDEX", "UNIQUE INDEX"))
    assert plain.shape != unique.shape


def test_numbers_are_not_compared() -> None:
    assert table(col(1, "id"), idx(7, "i"), check(8, "c")) == table(col(2, "id"), idx(9, "i"), check(6, "c"))


PLAIN = table(col(1, "id"), check(8, "positive"), idx(7, "by_id"))


@pytest.mark.parametrize(
    ("after", "dropped", "added", "altered"),
    [
        (PLAIN, [], [], []),
        (table(*PLAIN.parts, col(2, "title", "text")), [], ["title"], []),
        (table(check(8, "positive"), idx(7, "by_id")), ["id"], [], []),
        (table(col(1, "job"), *PLAIN.parts[1:]), [], [], ["id job"]),
        (table(col(1, "id", not_null=True), *PLAIN.parts[1:]), [], [], ["id id"]),
        (table(col(2, "id"), *PLAIN.parts[1:]), ["id"], ["id"], []),
        (table(col(1, "id"), check(8, "above"), idx(7, "by_job")), [], [], ["positive above", "by_id by_job"]),
        (table(col(1, "id"), check(18, "positive"), idx(17, "by_id")), [], [], []),
        (
            table(col(1, "id"), check(18, "positive", "CHECK ((id > 1))"), idx(7, "by_id")),
            [],
            [],
            ["positive positive"],
        ),
        (table(col(1, "id"), check(18, "above"), idx(7, "by_id")), ["positive"], ["above"], []),
    ],
    ids=[
        "nothing",
        "column added",
        "column dropped",
        "column renamed",
        "column altered",
        "column dropped and added again",
        "constraint and index renamed",
        "constraint and index created again alike",
        "constraint created again otherwise",
        "constraint dropped and another added",
    ],
)
def test_delta_names_what_was_dropped_added_and_altered(after, dropped, added, altered) -> None:
    delta = Delta.between(PLAIN, after)
    assert [part.name for part in delta.dropped] == dropped
    assert [part.name for part in delta.added] == added
    assert [f"{pair.before.name} {pair.after.name}" for pair in delta.altered] == altered


def test_index_that_took_the_name_of_a_dropped_one_is_renamed() -> None:
    delta = Delta.between(table(idx(1, "a"), idx(2, "b")), table(idx(2, "a")))
    assert [part.number for part in delta.dropped] == [1]
    assert [(pair.before.name, pair.after.name) for pair in delta.renamed] == [("b", "a")]
    assert not delta.changed


def test_parts_made_again_as_they_were_are_recreated_and_not_altered() -> None:
    delta = Delta.between(PLAIN, table(col(1, "id"), check(18, "positive"), idx(7, "by_id")))
    assert [part.name for part in delta.recreated] == ["positive"]
    assert not delta.altered


def test_gone_parts_are_those_that_neither_side_has() -> None:
    lost = PartName(PartKind.INDEX, "lost")
    delta = Delta.between(PLAIN, PLAIN, [PartName(PartKind.INDEX, "by_id"), lost, lost])
    assert delta.gone == (lost,)


def test_new_table_has_all_parts_added_and_dropped_one_none() -> None:
    assert len(Delta.between(None, PLAIN).added) == len(Delta.between(PLAIN, None).dropped) == 3
