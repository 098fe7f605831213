"""DDL LCRs: the manuals' attributes, and the batches that have them."""

from __future__ import annotations

import pytest

from headrace.base.errors import BugError
from headrace.lcr.building import batch_of_lcrs
from headrace.lcr.ddl_lcr import DdlLcr
from headrace.lcr.lcr_value import LcrError
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.tags import Tag
from tests.support.values.ddl_changes import ddl_batch, ddl_change, index, structure
from tests.support.values.lcr_batches import insert_batch


def test_attributes_are_those_of_the_change_and_its_transaction() -> None:
    change = ddl_change(
        structure(), structure(indexes=[index(7, "by_job")]), tag="CREATE INDEX", query="CREATE INDEX x"
    )
    lcr = DdlLcr(ddl_batch(change, commit=100, tag=Tag(value=b"\x11"), continues=True, first_position=7))
    assert (lcr.command_type, lcr.object_type) == ("CREATE INDEX", "INDEX")
    assert (lcr.object_owner, lcr.object_name) == ("hr", "by_job")
    assert (lcr.base_table_owner, lcr.base_table_name) == ("hr", "jobs")
    assert (lcr.ddl_text, lcr.logon_user, lcr.current_schema, lcr.edition_name) == ("CREATE INDEX x", "hr", None, None)
    assert (lcr.source_database_name, lcr.tag, lcr.is_null_tag()) == ("dbs1", b"\x11", False)
    assert (lcr.scn, lcr.commit_scn, lcr.transaction_id, lcr.source_time_us) == (99, 100, 1100, 100_000)
    assert lcr.position == 7
    assert lcr.change is change


def test_structures_are_those_of_the_record() -> None:
    lcr = DdlLcr(ddl_batch())
    assert lcr.before is not None
    assert lcr.after is not None
    assert [part.name for part in lcr.before.columns] == ["id"]
    assert [part.name for part in lcr.after.columns] == ["id", "title"]
    assert DdlLcr(ddl_batch(ddl_change(structure(), None, tag="DROP TABLE"))).after is None


def test_what_is_set_stays_in_the_view() -> None:
    batch = ddl_batch()
    lcr = DdlLcr(batch)
    lcr.tag, lcr.source_database_name = b"\x01", "dbs9"
    assert (lcr.tag, lcr.source_database_name) == (b"\x01", "dbs9")
    assert (DdlLcr(batch).tag, DdlLcr(batch).source_database_name) == (None, "dbs1")


def test_text_of_the_statement_is_not_in_the_representation() -> None:
    lcr = DdlLcr(ddl_batch(ddl_change(query="ALTER ROLE x PASSWORD 'secret'")))
    assert "secret" not in repr(lcr)
    assert "ALTER TABLE hr.jobs" in repr(lcr)


def test_batch_has_either_row_lcrs_or_a_ddl_lcr() -> None:
    with pytest.raises(LcrError, match="no DDL LCR"):
        DdlLcr(insert_batch([10]))
    with pytest.raises(LcrError, match="DDL LCR"):
        RowLcr(ddl_batch(), 0)
    with pytest.raises(BugError, match="DDL LCR"):
        batch_of_lcrs(ddl_batch(), [])
