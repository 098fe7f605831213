"""Error transactions with DDL LCRs that copies have made obsolete."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from protos import codec
from spark_apply.copy.records.obsolete_errors import ObsoleteErrors
from tests.support.values.ddl_changes import ddl_batch


@pytest.mark.parametrize(("copied", "is_obsolete"), [(100, True), (5, False)])
def test_queued_ddl_is_obsolete_when_its_table_was_copied_later(copied: int, is_obsolete: bool) -> None:
    """Otherwise it would hold the table's changes for ever: its execution finds all of it in the copy."""
    record = Instantiation(source="dbs1", identity="id of jobs", owner="hr", name="jobs", scn=Scn(copied), state="DONE")
    destination = SimpleNamespace(
        errors=lambda *_: [SimpleNamespace(number=3, commit_scn=10, depends_on=0)],
        error_batches=lambda _: iter([codec.encode(ddl_batch(commit=10))]),
        instantiations=lambda *_: [record],
    )
    config = SimpleNamespace(topology="t", apply="a", source=SimpleNamespace(site="dbs1"))
    asked: list[list[int]] = []

    def delete(numbers: list[int]) -> frozenset[int]:
        asked.append(numbers)
        return frozenset(numbers)

    joins = SimpleNamespace(delete_obsolete=delete, execute_held=lambda _: None)
    obsolete: set[TableName] = set()
    records = SimpleNamespace(obsolete=obsolete)
    cast("Any", ObsoleteErrors)(config=config, destination=destination, records=records).delete(joins)
    assert asked == ([[3]] if is_obsolete else [])
    assert obsolete == ({TableName("hr", "jobs")} if is_obsolete else set())
