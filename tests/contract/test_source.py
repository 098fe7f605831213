"""The contract of sources: log stream, decoder, markers and snapshots."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from headrace.lcr.batch import Command, OldImage
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.lcr.tags import Tag
from headrace.lcr.values import NULL, UNCHANGED
from tests.support.databases.log_reading import Reading, ReadTransaction
from tests.support.databases.source_contract import (
    LARGE,
    RULES,
    TOPOLOGY,
    SourceHarness,
    harness_of,
    message_ends,
    reading,
)

ONE = Tag(value=b"\x01", topology="contract_source", apply="apply_one")
TWO = Tag(value=b"\x02", topology="contract_source", apply="apply_two")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def harness(request: pytest.FixtureRequest) -> Iterator[SourceHarness]:
    made = harness_of(request.param, request)
    made.create_table("t", ["id", "a", "big"])
    made.create_table("u", ["id"])
    made.source.prepare(TOPOLOGY, RULES)
    yield made
    made.source.remove(TOPOLOGY)
    made.close()


def write_history(harness: SourceHarness) -> None:
    """Write every command, every kind of value, two tags."""
    with harness.transaction() as user:
        user.insert("t", id="1", a=None, big=LARGE.decode())
    with harness.transaction(ONE) as user:
        user.update("t", "1", a="tagged")
        user.insert("u", id="9")
    with harness.transaction(TWO) as user:
        user.insert("t", id="2", a="", big=None)
    with harness.transaction() as user:
        user.delete("t", "2")
        user.update("t", "1", id="3")
    with harness.transaction(ONE) as user:
        user.truncate("u")


def said(transactions: list[ReadTransaction]) -> list[tuple[Any, ...]]:
    """Return the transactions without markers and positions."""
    return [
        (t.tag, [(row.command, row.table.name, row.old_image, row.old, row.new) for row in t.rows], len(t.truncates))
        for t in transactions
        if t.rows or t.truncates
    ]


def read_history(harness: SourceHarness) -> Reading:
    found = reading(harness)
    write_history(harness)
    return found.through(harness.source.write_marker(b"end"))


def test_stream_has_every_commit_in_order_with_tag_and_values(harness: SourceHarness) -> None:
    found = read_history(harness)
    inserted, tagged, other, moved, truncated = said(found.transactions)
    assert inserted == (
        None,
        [(Command.INSERT, "t", OldImage.NONE, {}, {"id": b"1", "a": NULL, "big": LARGE})],
        0,
    )
    assert tagged[0] == ONE
    assert tagged[1][0] == (Command.UPDATE, "t", OldImage.NONE, {}, {"id": b"1", "a": b"tagged", "big": UNCHANGED})
    assert (other[0], other[1][0][4]) == (TWO, {"id": b"2", "a": b"", "big": NULL})
    assert [row[0] for row in moved[1]] == [Command.DELETE, Command.UPDATE]
    assert [row[3]["id"] for row in moved[1]] == [b"2", b"1"]
    assert moved[1][1][2] is OldImage.KEY
    assert truncated == (ONE, [], 1)
    scns = [scn for t in found.transactions for scn in (t.order_scn, t.commit_scn)]
    assert scns == sorted(scns)
    assert len(set(scns[1::2])) == len(found.transactions)


@pytest.mark.parametrize("rows_max", [1, 2, 1000])
def test_decoder_says_the_same_wherever_the_bytes_are_cut_between_messages(
    harness: SourceHarness, rows_max: int
) -> None:
    found = read_history(harness)
    data, options = bytes(found.data), found.stream.options
    ends = message_ends(data, harness.decoder(options))
    assert ends[-1] == len(data)
    cuts = [[0, end, len(data)] for end in ends[:-1]] + [[0, *ends]]
    for places in cuts:
        again = Reading(found.stream, harness.decoder(options), rows_max=rows_max)
        for first, last in itertools.pairwise(places):
            again.take(data[first:last])
        assert said(again.transactions) == said(found.transactions), places
        assert again.messages == found.messages


def test_decoder_forgets_the_transaction_in_progress_when_it_comes_again(harness: SourceHarness) -> None:
    found = read_history(harness)
    data, options = bytes(found.data), found.stream.options
    for end in message_ends(data, harness.decoder(options))[:-1]:
        decoder = harness.decoder(options)
        Reading(found.stream, decoder).take(data[:end])
        decoder.reset()
        again = Reading(found.stream, decoder)
        again.take(data)
        assert said(again.transactions) == said(found.transactions)


def test_descriptions_are_found_without_decoding_and_have_the_columns(harness: SourceHarness) -> None:
    found = read_history(harness)
    described = harness.decoder(found.stream.options).describe(np.frombuffer(bytes(found.data), np.uint8))
    columns = {version.name: [(column.name, column.is_key) for column in version.columns] for version in described}
    assert columns == {"t": [("id", True), ("a", False), ("big", False)], "u": [("id", True)]}
    build = harness.source.dictionary_build(TOPOLOGY)
    assert {(version.object_number, version.name) for version in described} <= {
        (t.object_number, t.name) for t in build.tables
    }
    assert all(table.root_number == table.object_number for table in build.tables if table.stored_name == table.name)
    tables = harness.source.tables(RULES)
    assert [table.name for table in tables] == ["t", "u"]
    beforehand = harness.source.table_versions(tables)
    assert {v.name: [c.name for c in v.columns] for v in beforehand} == {
        n: [c[0] for c in found] for n, found in columns.items()
    }
    captured = {table.name: table.object_numbers for table in harness.source.captured(TOPOLOGY)}
    assert all(version.object_number in captured[version.name] for version in described)


def test_what_was_confirmed_does_not_come_again_and_the_rest_does(harness: SourceHarness) -> None:
    first = read_history(harness)
    expected = said(first.transactions)
    first.stream.close()
    again = reading(harness).through(first.end_scn)
    assert said(again.transactions) == expected
    second = [t for t in again.transactions if t.rows or t.truncates][1]
    again.stream.confirm(Scn(second.commit_scn))
    again.stream.close()
    rest = reading(harness, Scn(second.commit_scn))
    assert rest.stream.start_scn == second.commit_scn
    assert said(rest.through(first.end_scn).transactions) == expected[2:]
    rest.stream.close()
    assert harness.source.open_stream(TOPOLOGY, FIRST_SCN).start_scn <= second.commit_scn


def test_marker_follows_earlier_commits_and_is_in_the_log(harness: SourceHarness) -> None:
    found = reading(harness)
    write_history(harness)
    marker = harness.source.write_marker(b"content")
    with harness.transaction() as user:
        user.insert("u", id="after")
    found.through(harness.source.write_marker(b"end"))
    commits = [t.commit_scn for t in found.transactions if t.rows or t.truncates]
    assert all(scn <= marker for scn in commits[:-1])
    assert commits[-1] > marker
    assert [message[2] for message in found.messages] == [b"content", b"end"]


def test_snapshot_has_what_committed_before_it_and_nothing_later(harness: SourceHarness) -> None:
    found = reading(harness)
    with harness.transaction() as user:
        user.insert("u", id="before")
    snapshot = harness.source.open_snapshot(TOPOLOGY)
    with harness.transaction() as user:
        user.insert("u", id="after")
    found.through(harness.source.write_marker(b"end"))
    before, after = (t.commit_scn for t in found.transactions if t.rows)
    assert before <= snapshot.scn < after
    snapshot.close()
    snapshot.close()


def test_snapshot_is_captured_when_the_log_writer_has_confirmed_all_of_it(harness: SourceHarness) -> None:
    found = reading(harness)
    with harness.transaction() as user:
        user.insert("u", id="before")
    snapshot = harness.source.open_snapshot(TOPOLOGY)
    found.through(harness.source.write_marker(b"end"))
    assert not snapshot.is_captured(), "read, and not durable yet"
    commits = [t.commit_scn for t in found.transactions if t.rows]
    found.stream.confirm(Scn(commits[-1] - 1))
    assert not snapshot.is_captured()
    found.stream.confirm(Scn(found.end_scn))
    deadline = time.monotonic() + 30
    while not snapshot.is_captured():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    snapshot.close()
