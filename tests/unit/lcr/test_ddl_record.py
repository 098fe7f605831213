"""A source's record of one DDL change, read."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import ProtocolError
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import OwnedSequence, PartKind, PartName, structure_from_json
from tests.support.values.ddl_changes import NUMBER, column, ddl_record, structure

ADDED = structure(column(1, "id"), column(2, "title", "text"))


def test_record_is_read_with_all_its_circumstances() -> None:
    gone = [
        {"relation": NUMBER, "kind": "table column", "name": "c"},
        {"relation": NUMBER, "kind": "table constraint", "name": "k"},
        {"relation": NUMBER, "kind": "index", "name": "i"},
        {"relation": NUMBER, "kind": "default value", "name": "c"},
    ]
    content = ddl_record(structure(), ADDED, gone=gone, rewritten=[1, 4], older={"title": "x"}, is_nested=True)
    record = DdlRecord.of(content.decode())
    assert (record.tag, record.relation, record.version, record.is_known) == ("ALTER TABLE", NUMBER, 16, True)
    assert (record.before, record.after) == (structure_from_json(structure()), structure_from_json(ADDED))
    assert record.gone == (
        PartName(PartKind.COLUMN, "c"),
        PartName(PartKind.CONSTRAINT, "k"),
        PartName(PartKind.INDEX, "i"),
    )
    assert (record.rewritten, record.older, record.is_nested) == (5, {"title": "x"}, True)
    assert [part.name for part in record.delta.added] == ["title"]


@pytest.mark.parametrize(("written", "read"), [(0, 0), (4, 4), ([], 0), ([2, 4], 6), (None, 0)])
def test_reasons_of_rewriting_are_one_set_of_bits(written: object, read: int) -> None:
    assert DdlRecord.of(ddl_record(None, ADDED, rewritten=written).decode()).rewritten == read


SEQUENCE = {
    "owner": "hr",
    "name": "jobs_id_seq",
    "type": "integer",
    "start": 1,
    "increment": 2,
    "min": 1,
    "max": 2147483647,
    "cache": 1,
    "cycle": False,
    "kind": "a",
}


def test_sequences_of_a_new_table_are_read() -> None:
    made = {"identities": {}, "why_not": "", "sequences": {"id": SEQUENCE}}
    record = DdlRecord.of(ddl_record(None, ADDED, tag="CREATE TABLE", made=made).decode())
    assert record.sequences == {
        "id": OwnedSequence(
            owner="hr",
            name="jobs_id_seq",
            type="integer",
            start=1,
            increment=2,
            min=1,
            max=2147483647,
            cache=1,
            cycle=False,
            kind="a",
        )
    }
    assert DdlRecord.of(ddl_record(None, ADDED).decode()).sequences == {}


@pytest.mark.parametrize("sequence", [3, {}, {**SEQUENCE, "max": "x"}, {**SEQUENCE, "name": None}])
def test_damaged_sequence_is_refused(sequence: object) -> None:
    made = {"identities": {}, "why_not": "", "sequences": {"id": sequence}}
    with pytest.raises(ProtocolError):
        DdlRecord.of(ddl_record(None, ADDED, made=made).decode())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        ddl_record(None, ADDED, format=2).decode(),
        ddl_record(None, ADDED | {"columns": 3}).decode(),
        json.dumps({"format": 1, "base": True, "after": ADDED}),
        json.dumps({"format": 1, "failed": "57014", "tag": "ALTER TABLE", "query": ""}),
    ],
    ids=["empty", "list", "another format", "damaged table", "base", "failed"],
)
def test_what_is_no_record_of_a_change_is_refused(content: str) -> None:
    with pytest.raises(ProtocolError):
        DdlRecord.of(content)


@pytest.mark.seeded
@given(st.text(max_size=40), st.integers(0, 600))
def test_damage_raises_one_error_alone(damage: str, place: int) -> None:
    content = ddl_record(structure(), ADDED).decode()
    with contextlib.suppress(ProtocolError):
        DdlRecord.of(content[:place] + damage + content[place + len(damage) :])
