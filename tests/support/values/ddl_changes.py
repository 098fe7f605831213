"""DDL changes for tests: records as a source writes them, and batches with them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from headrace.lcr.batch import LcrBatch
from headrace.lcr.ddl import DdlChange, ddl_of
from headrace.lcr.scn import Scn
from headrace.lcr.tags import Tag
from tests.support.values.lcr_batches import transactions

NUMBER = 16400  # of the table, unless a test gives another


def column(number: int, name: str, kind: str = "integer", **attributes: Any) -> dict[str, Any]:
    """Return one column of a structure."""
    plain = {"collation": None, "not_null": False, "default": None, "identity": "", "generated": "", "calls": False}
    return {"number": number, "name": name, "type": kind, **plain, **attributes}


def index(number: int, name: str, columns: str = "id", *, table: str = "hr.jobs") -> dict[str, Any]:
    """Return one index of a structure."""
    definition = f"CREATE INDEX {name} ON {table} USING btree ({columns})"
    return {"number": number, "name": name, "definition": definition, "calls": False}


def structure(
    *columns: dict[str, Any],
    owner: str = "hr",
    name: str = "jobs",
    indexes: list[dict[str, Any]] | None = None,
    constraints: list[dict[str, Any]] | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    """Return a table's structure as the source writes it; without columns: `id integer`."""
    return {
        "owner": owner,
        "name": name,
        "kind": "r",
        "persistence": "p",
        "role": owner,
        "is_partition": False,
        "parents": 0,
        "children": 0,
        "columns": list(columns) or [column(1, "id")],
        "constraints": constraints or [],
        "indexes": indexes or [],
        **attributes,
    }


def ddl_record(before: dict[str, Any] | None, after: dict[str, Any] | None, **attributes: Any) -> bytes:
    """Return the record of a change from one structure to another, with other attributes where they are given."""
    record = {
        "format": 1,
        "tag": "ALTER TABLE",
        "relation": NUMBER,
        "before": before,
        "is_known": True,
        "after": after,
        "gone": [],
        "rewritten": [],
        "older": {},
        "query": "ALTER TABLE hr.jobs ADD COLUMN title text",
        "is_nested": False,
        "user": "hr",
        "role": "none",
        "version": 16,
    }
    return json.dumps({**record, **attributes}, ensure_ascii=False).encode()


def ddl_change(
    before: dict[str, Any] | None = None, after: dict[str, Any] | None = None, **attributes: Any
) -> DdlChange:
    """Return a change; without structures: hr.jobs gets the column `title`.

    Args:
        before: the table's structure before it.
        after: after it.
        attributes: others of the record, such as `tag` and `query`.
    """
    if before is None and after is None:
        before, after = structure(), structure(column(1, "id"), column(2, "title", "text"))
    change = ddl_of(ddl_record(before, after, **attributes))
    assert change is not None
    return change


def ddl_batch(
    change: DdlChange | None = None,
    *,
    commit: int = 10,
    source: str = "dbs1",
    previous: int = 0,
    tag: Tag | None = None,
    is_open: bool = False,
    continues: bool = False,
    first_position: int = 0,
) -> LcrBatch:
    """Return a batch with a DDL LCR; without a change: of `ddl_change()`."""
    return LcrBatch(
        source=source,
        previous_scn=Scn(previous),
        through_scn=Scn(previous if is_open else commit),
        continues=continues,
        first_position=first_position,
        tags=() if tag is None else (tag,),
        transactions=transactions([commit], [1], tags=[-1 if tag is None else 0], is_open=is_open),
        ddl=change or ddl_change(),
    )


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


@st.composite
def ddl_batches(draw: st.DrawFn) -> LcrBatch:
    """Draw a batch with any DDL LCR: whole, or a part of a transaction."""
    change = draw(
        st.builds(
            DdlChange,
            command_type=_NAMES,
            object_type=st.sampled_from(["TABLE", "INDEX"]),
            object_owner=_NAMES,
            object_name=_NAMES,
            base_table_owner=_NAMES,
            base_table_name=_NAMES,
            object_number=st.integers(1, 2**32),
            ddl_text=_TEXTS,
            logon_user=_TEXTS,
            current_schema=_TEXTS,
            content=_TEXTS,
        )
    )
    continues = draw(st.booleans())
    previous = draw(st.integers(0, 2**60))
    return ddl_batch(
        change,
        commit=previous + 10,
        source=draw(_NAMES),
        previous=previous,
        tag=draw(st.none() | st.builds(Tag, value=st.binary(max_size=4), topology=_NAMES)),
        is_open=draw(st.booleans()),
        continues=continues,
        first_position=draw(st.integers(1, 2**40)) if continues else 0,
    )
