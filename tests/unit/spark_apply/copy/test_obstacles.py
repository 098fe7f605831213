"""Advice about rows that a copy must not remove: never to empty a table from which other sites get their rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.connectors import DatabaseAccess
from headrace.databases.ports import Instantiation, OtherCopy
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from spark_apply.apply_config import ApplyConfig, TableToInstantiate
from spark_apply.copy.pieces.rounds import what_changes_a_copy
from spark_apply.copy.records.standing import Standing
from spark_apply.copy.ways.neighbours import not_copied_beside
from spark_apply.copy.ways.obstacles import refused

T = TableName("shop", "orders")
TABLE = TableToInstantiate(identity="1", source=T, destination=T, object_numbers=())
LEFT = Instantiation(source="a", identity="1", owner="shop", name="orders", scn=100, state="LEFT")


@pytest.mark.parametrize("record", [None, LEFT], ids=["never copied", "out of date"])
def test_rows_copied_to_other_sites_are_never_advised_to_be_removed(record: Instantiation | None) -> None:
    alone, shared = (
        Standing(table=replace(TABLE, is_sent_on=is_sent_on), record=record) for is_sent_on in (False, True)
    )
    assert "ther sites get their rows from here" in refused(shared)
    for words in ("empty it", "empty the", "set_tag"):
        assert words not in refused(shared)
    assert "ther sites" not in refused(alone)
    assert record is None or "(how)" in refused(alone, "how")


def test_advice_for_unowned_rows_is_to_keep_them() -> None:
    assert "keep them with `headrace up --keep-existing`" in refused(Standing(table=TABLE))
    assert "empty it" not in refused(Standing(table=TABLE))
    assert refused(Standing(table=replace(TABLE, keep_existing=True))) == ""


def test_advice_for_rows_next_to_another_applys_rows_cites_the_guide() -> None:
    other = OtherCopy(topology="t", apply="apply_c", source="c", state="DONE", scn=Scn(1))
    access = DatabaseAccess(site="a", kind="memory", dsn="")
    config = ApplyConfig(
        topology="t", apply="apply_a", source=access, destination=access, queue="", parallelism=1, tables=()
    )
    said = not_copied_beside(
        Standing(table=replace(TABLE, is_sent_on=True)), [other], config, "DELETE FROM ONLY shop.orders"
    )
    assert "delete its rows" not in said
    assert "DELETE FROM" not in said
    assert "Adding a site to an n-way topology" in said
    assert "at this site alone: DELETE FROM ONLY shop.orders" in not_copied_beside(
        Standing(table=TABLE), [other], config, "DELETE FROM ONLY shop.orders"
    )


def test_advice_for_foreign_writes_to_a_forwarded_copy_is_to_verify() -> None:
    alone, shared = (what_changes_a_copy(replace(TABLE, is_sent_on=is_sent_on)) for is_sent_on in (False, True))
    assert "another writer); then it is copied again" in alone
    assert "headrace verify" not in alone
    assert shared.startswith(alone)
    assert shared.endswith("have them stop writing until the table is DONE, then `headrace verify FILE shop.orders`")
