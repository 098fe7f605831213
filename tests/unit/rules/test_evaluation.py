"""Rule evaluation on batches, compared row by row with the evaluation of single LCRs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from headrace.databases.memory.source import MemorySource
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import Scn
from headrace.lcr.tags import Tag
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet, TagCondition, TruthValue
from tests.support.histories.workloads import Workload
from tests.support.redo.redo_logs import mine, miner, received, rows_of, write_redo
from tests.support.values.ddl_changes import ddl_batch

ALL = RuleSet(include=(Rule(tags=ANY_TAG),))
NOTHING = RuleSet(include=())
RULES = [
    ALL,
    NOTHING,
    RuleSet(),
    RuleSet(include=(Rule(),)),
    RuleSet(include=(Rule(owner="hr", name="keyed", tags=ANY_TAG),)),
    RuleSet(exclude=(Rule(owner="sales", tags=ANY_TAG),)),
    RuleSet(exclude=(Rule(name="bag"),)),
    RuleSet(include=(Rule(owner="hr"),), exclude=(Rule(name="f*", tags=ANY_TAG),)),
    RuleSet(include=(Rule(tags=TagCondition(listed=(None, b"\x1d"))),)),
    RuleSet(
        include=(
            Rule(tags=TagCondition(listed=(b"\x00",), takes_listed=False)),
            Rule(owner="sales", tags=TagCondition(listed=(b"\x00",))),
        ),
        exclude=(Rule(owner="sales", tags=TagCondition(listed=(b"\x1d",))),),
    ),
]


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> list[LcrBatch]:
    """Whole batches, transaction parts and progress marks, tagged and untagged."""
    folder = tmp_path_factory.mktemp("redo")
    source = MemorySource()
    Workload(source, 8, rows_max=30).run(80)
    writer = write_redo(folder, source)
    reader = miner(folder, rules=ALL)
    found = list(mine(reader, writer, rows_max=12))
    last = found[-1].through_scn
    found.append(LcrBatch(source="dbs1", previous_scn=last, through_scn=Scn(last + 1)))
    assert any(batch.is_open for batch in found)
    return found


def keeps(rules: RuleSet, table: str, tag: Tag | None) -> bool:
    owner, _, name = table.partition(".")
    return rules.prefilter(owner, name, tag=None if tag is None else tag.value) is not TruthValue.FALSE


@pytest.mark.parametrize("rules", RULES)
def test_filtered_batches_contain_the_rows_that_single_evaluation_keeps(batches, rules):
    expected = []
    for transaction in received(batches):
        rows = []
        for row in transaction.rows:
            if row[0] == "TRUNCATE":
                tables = tuple(t for t in row[2] if keeps(rules, t, transaction.tag))
                rows += [(*row[:2], tables, row[3])] if tables else []
            elif keeps(rules, row[1], transaction.tag):
                rows.append(row)
        if rows:
            expected.append(replace(transaction, rows=tuple(rows)))
    # Positions within a transaction stay as before filtering.
    filtered = [replace(RuleEvaluation(rules).filter(batch), first_position=0) for batch in batches]
    found = []
    rows_before: list[Any] = []
    for batch in filtered:
        rows_before = rows_before if batch.continues else []
        rows_before += rows_of(batch) if batch.is_open or batch.continues else []
        if batch.is_open:
            continue
        transactions = batch.transactions
        for number in range(len(transactions)):
            first, end = transactions.first_row[number], transactions.first_row[number + 1]
            tag = int(transactions.tag[number])
            its_rows = tuple(rows_before if batch.continues else rows_of(batch)[first:end])
            if its_rows:
                found.append((int(transactions.commit_scn[number]), batch.tags[tag] if tag >= 0 else None, its_rows))
    assert found == [(transaction.commit_scn, transaction.tag, transaction.rows) for transaction in expected]


@pytest.mark.parametrize("rules", RULES)
def test_positions_stay_contiguous_after_filtering(batches, rules):
    for batch in batches:
        after = RuleEvaluation(rules).filter(batch)
        assert (after.previous_scn, after.through_scn) == (batch.previous_scn, batch.through_scn)
        assert (after.is_open, after.continues) == (batch.is_open, batch.continues)


def test_batch_without_discarded_rows_stays_the_same_object(batches):
    for batch in batches:
        assert RuleEvaluation(ALL).filter(batch) is batch
        assert RuleEvaluation(RuleSet()).filter(batch) is batch


def test_fully_discarded_batch_becomes_a_progress_mark_or_an_empty_part(batches):
    for batch in batches:
        after = RuleEvaluation(NOTHING).filter(batch)
        assert after.row_count == 0
        assert after.is_progress_mark != (batch.is_open or batch.continues)
        assert not after.groups
        assert not after.tables


# Each client with itself and its neighbour; `make soak` runs every pair.
PAIRS = [
    pytest.param(
        first, second, marks=[] if (place - other) % len(RULES) in {0, 1} else [pytest.mark.soak], id=f"{other}-{place}"
    )
    for other, first in enumerate(RULES)
    for place, second in enumerate(RULES)
]


@pytest.mark.long
@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_several_rule_sets_filter_like_successive_clients(batches, first, second):
    for batch in batches:
        after = RuleEvaluation(first, second).filter(batch)
        other = RuleEvaluation(second).filter(RuleEvaluation(first).filter(batch))
        assert (rows_of(after), after.transactions.commit_scn.tolist()) == (
            rows_of(other),
            other.transactions.commit_scn.tolist(),
        )


DDL = Rule(owner="hr", name="jobs", ddl=True)


@pytest.mark.parametrize(
    ("sets", "is_kept"),
    [
        ([RuleSet(include=(DDL,))], True),
        ([RuleSet()], True),
        ([ALL], False),
        ([NOTHING], False),
        ([RuleSet(include=(DDL,)), ALL], False),
        ([RuleSet(exclude=(DDL,))], False),
    ],
    ids=["positive", "no rules", "rows only", "no positive rule", "second client", "negative"],
)
@pytest.mark.parametrize(("is_open", "continues"), [(False, False), (True, False), (False, True)])
def test_ddl_lcr_is_kept_or_leaves_its_batch(sets, is_kept, is_open, continues):
    batch = ddl_batch(is_open=is_open, continues=continues)
    after = RuleEvaluation(*sets).filter(batch)
    if is_kept:
        assert after is batch
        return
    assert (after.ddl, after.row_count, after.is_progress_mark) == (None, 0, not is_open and not continues)
    assert (after.previous_scn, after.through_scn) == (batch.previous_scn, batch.through_scn)


def test_ddl_lcr_is_taken_by_the_tag_of_its_transaction():
    evaluation = RuleEvaluation(RuleSet(include=(DDL,)))
    assert evaluation.filter(ddl_batch(tag=Tag(value=b"\x1d"))).ddl is None
    listed = replace(DDL, tags=TagCondition(listed=(b"\x1d",)))
    assert RuleEvaluation(RuleSet(include=(listed,))).filter(ddl_batch(tag=Tag(value=b"\x1d"))).ddl is not None
    assert RuleEvaluation(RuleSet(include=(listed,))).filter(ddl_batch()).ddl is None


def test_process_without_row_conditions_does_not_load_the_compiler():
    """The compiler costs 25 MB and 0.2 s at start; a propagation without conditions and transformations needs none."""
    code = "import sys, actors.staging.propagation; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
