"""The decoder of pgoutput against hand-made messages and a slow reference implementation.

Longer than 500 lines: all of it shares the reference implementation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from headrace.base.errors import ProtocolError
from headrace.chaos.faults import _REDO_ROOM_BYTES
from headrace.databases.ports import DecodedChunk, StreamOptions
from headrace.databases.postgres.origins import TAG_PREFIX, tag_of_origin
from headrace.databases.postgres.source.database import MARKER_PREFIX
from headrace.databases.postgres.source.log_stream import pgoutput_kernels as k
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.batch import Command, OldImage, content_version
from headrace.lcr.tags import TAG_BYTES_MAX, Tag
from headrace.lcr.tracking import LABEL_BYTES_MAX, TRACK_PREFIX, label_of_message
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from tests.support.session.seeds import scaled
from tests.support.values import pgoutput_messages as pg

INT4, TEXT, ACLITEM = 23, 25, 1033
OURS = "headrace:topo/apply_1/0:00ff"
COLUMNS = [("id", INT4, True), ("a", TEXT, False)]


def options(*, binary: bool = False) -> StreamOptions:
    return StreamOptions(
        database_kind="postgres", system_identifier="1", timeline=1, binary=binary, encoding="UTF8", server_version=18
    )


def decode(data: bytes, decoder: PostgresLogDecoder | None = None, start: int = 0, rows_max: int = 100) -> DecodedChunk:
    return (decoder or PostgresLogDecoder(options())).decode(np.frombuffer(data, np.uint8), start, rows_max=rows_max)


def row_values(data: bytes, chunk: DecodedChunk, first: int, count: int) -> list[bytes | int]:
    out: list[bytes | int] = []
    for v in range(first, first + count):
        length = int(chunk.value_length[v])
        offset = int(chunk.value_offset[v])
        out.append(data[offset : offset + length] if length >= 0 else length)
    return out


# ---------------------------------------------------------------- single messages


def test_insert_update_delete_become_rows_of_one_transaction() -> None:
    data = pg.stream(
        pg.begin(100, 7, pg.EPOCH_US + 5),
        pg.relation(50, "hr", "t", COLUMNS),
        pg.insert(50, [b"1", None]),
        pg.update(50, [b"2", pg.UNCHANGED], key=[b"1", None]),
        pg.update(50, [b"2", b"x"]),
        pg.delete(50, key=[b"2", None]),
        pg.commit(100, 108),
    )
    chunk = decode(data)
    assert chunk.consumed == len(data)
    assert chunk.command.tolist() == [Command.INSERT, Command.UPDATE, Command.UPDATE, Command.DELETE]
    assert chunk.object_number.tolist() == [50] * 4
    assert chunk.old_image.tolist() == [OldImage.NONE, OldImage.KEY, OldImage.NONE, OldImage.KEY]
    assert row_values(data, chunk, int(chunk.new_first[0]), 2) == [b"1", NULL]
    assert row_values(data, chunk, int(chunk.old_first[1]), 2) == [b"1", ABSENT]
    assert row_values(data, chunk, int(chunk.new_first[1]), 2) == [b"2", UNCHANGED]
    assert chunk.old_first[2] == -1
    assert row_values(data, chunk, int(chunk.old_first[3]), 2) == [b"2", ABSENT]
    assert chunk.new_first[3] == -1
    assert chunk.transaction_id.tolist() == [7]
    assert (chunk.order_scn.tolist(), chunk.commit_scn.tolist()) == ([100], [108])
    assert chunk.commit_time_us.tolist() == [pg.EPOCH_US + 5]
    assert (chunk.tag.tolist(), chunk.first_row.tolist(), chunk.continues) == ([-1], [0, 4], False)
    [version] = chunk.versions
    assert (version.qualified_name, version.object_number, version.old_image) == ("hr.t", 50, OldImage.KEY)
    assert [(c.name, c.type_name, c.is_key) for c in version.columns] == [
        ("id", "pg_catalog.int4", True),
        ("a", "pg_catalog.text", False),
    ]


def test_null_in_a_full_old_image_stays_null() -> None:
    data = pg.stream(pg.begin(1, 1), pg.delete(5, old=[b"1", None]), pg.commit(1, 2))
    chunk = decode(data)
    assert chunk.old_image.tolist() == [OldImage.FULL]
    assert row_values(data, chunk, 0, 2) == [b"1", NULL]


def test_chunk_ends_before_a_description_that_follows_rows() -> None:
    head = pg.stream(pg.begin(1, 1), pg.relation(5, "s", "t", COLUMNS), pg.insert(5, [b"1", b"a"]))
    tail = pg.stream(
        pg.type_name(20_000, "s", "mood"),
        pg.relation(5, "s", "t", [*COLUMNS, ("m", 20_000, False)]),
        pg.insert(5, [b"2", b"b", b"ok"]),
        pg.commit(1, 2),
    )
    decoder = PostgresLogDecoder(options())
    first = decode(head + tail, decoder)
    assert (first.consumed, len(first.command), first.commit_scn.tolist()) == (len(head), 1, [0])
    second = decode(head + tail, decoder, first.consumed)
    assert second.continues
    assert (second.transaction_id.tolist(), second.order_scn.tolist(), second.commit_scn.tolist()) == ([1], [1], [2])
    assert second.versions[0].columns[2].type_name == "s.mood"
    assert second.versions[0].version != first.versions[0].version
    assert second.consumed == len(tail)


def test_equal_descriptions_have_equal_versions_in_another_decoder() -> None:
    data = pg.stream(pg.begin(1, 1), pg.relation(5, "s", "t", COLUMNS), pg.commit(1, 2))
    one, two = decode(data).versions[0], decode(data).versions[0]
    assert one == two
    assert one.version == content_version(one)
    other = pg.stream(pg.begin(1, 1), pg.relation(5, "s", "t", COLUMNS, identity="f"), pg.commit(1, 2))
    assert decode(other).versions[0].version != one.version


@pytest.mark.parametrize(
    ("identity", "columns", "image"),
    [
        ("f", [("a", INT4, True)], OldImage.FULL),
        ("i", [("a", INT4, True)], OldImage.KEY),
        ("d", [("a", INT4, False)], OldImage.NONE),
        ("n", [("a", INT4, False)], OldImage.NONE),
    ],
)
def test_replica_identity_determines_the_old_image(
    identity: str, columns: list[tuple[str, int, bool]], image: OldImage
) -> None:
    data = pg.stream(pg.relation(5, "", "t", columns, identity=identity))
    [version] = decode(data).versions
    assert version.old_image is image
    assert version.owner == "pg_catalog"


def test_truncate_takes_one_row_with_all_its_tables() -> None:
    data = pg.stream(
        pg.begin(1, 1),
        pg.insert(5, [b"1"]),
        pg.truncate([5, 6], cascade=True),
        pg.truncate([7], restart_identity=True),
        pg.insert(5, [b"2"]),
        pg.commit(1, 2),
    )
    chunk = decode(data)
    assert chunk.command.tolist() == [Command.INSERT, Command.TRUNCATE, Command.TRUNCATE, Command.INSERT]
    assert chunk.truncates == {1: ((5, 6), True, False), 2: ((7,), False, True)}
    assert chunk.new_first[1] == chunk.old_first[1] == -1


def test_only_our_origins_carry_tags() -> None:
    data = pg.stream(
        pg.begin(1, 1),
        pg.origin(OURS),
        pg.insert(5, [b"1"]),
        pg.commit(1, 2),
        pg.begin(3, 2),
        pg.origin("somebody"),
        pg.insert(5, [b"1"]),
        pg.commit(3, 4),
        pg.begin(5, 3),
        pg.insert(5, [b"1"]),
        pg.commit(5, 6),
        pg.begin(7, 4),
        pg.origin("headrace:topo/apply_1/1:00ff"),
        pg.insert(5, [b"1"]),
        pg.commit(7, 8),
    )
    decoder = PostgresLogDecoder(options())
    chunk = decode(data, decoder)
    assert chunk.tag.tolist() == [0, -1, -1, 0]
    assert chunk.tags == (Tag(value=b"\x00\xff", topology="topo", apply="apply_1"),)
    assert decode(data, decoder).tag.tolist() == [0, -1, -1, 0], "also when the origins are already known"


def test_tag_survives_into_the_next_chunk_of_a_transaction() -> None:
    data = pg.stream(pg.begin(1, 1), pg.origin(OURS), pg.insert(5, [b"1"]), pg.insert(5, [b"2"]), pg.commit(1, 2))
    decoder = PostgresLogDecoder(options())
    first = decode(data, decoder, rows_max=1)
    second = decode(data, decoder, first.consumed, rows_max=1)
    assert (first.tag.tolist(), second.tag.tolist(), second.continues) == ([0], [0], True)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        (OURS, Tag(value=b"\x00\xff", topology="topo", apply="apply_1")),
        ("headrace:t/a/12:", Tag(value=b"", topology="t", apply="a")),
        ("headrace:something else", Tag(value=b"", topology="", apply="")),
        ("headrace:t/a/12:null", None),
        ("pg_16402", None),
        ("", None),
    ],
)
def test_origin_name_like_ours_is_a_null_tag_only_if_it_says_null(name: str, tag: Tag | None) -> None:
    assert tag_of_origin(name) == tag


def test_message_before_the_first_change_tags_only_its_transaction() -> None:
    data = pg.stream(
        pg.begin(1, 1),
        pg.message("headrace.tag", b"\x0b"),
        pg.insert(5, [b"1"]),
        pg.insert(5, [b"2"]),
        pg.commit(1, 2),
        pg.begin(3, 3),
        pg.insert(5, [b"3"]),
        pg.commit(3, 4),
        pg.begin(5, 5),
        pg.origin(OURS),
        pg.message("headrace.tag", b"\x0c"),
        pg.insert(5, [b"4"]),
        pg.commit(5, 6),
    )
    decoder = PostgresLogDecoder(options())
    chunk = decode(data, decoder)
    assert [None if number < 0 else chunk.tags[number].value for number in chunk.tag] == [b"\x0b", None, b"\x00\xff"], (
        "an apply process's tag takes precedence"
    )
    assert chunk.messages == ()
    decoder = PostgresLogDecoder(options())
    first = decode(data, decoder, rows_max=1)
    second = decode(data, decoder, first.consumed, rows_max=1)
    assert second.continues
    assert (first.tags[first.tag[0]], second.tags[second.tag[0]]) == (Tag(value=b"\x0b"), Tag(value=b"\x0b"))


@pytest.mark.parametrize("rows_max", [1000, 100_000])
def test_more_tags_than_a_chunk_can_name_stay_distinct_and_are_released(rows_max: int) -> None:
    """Users can use a new tag for each transaction."""
    count = 40_000
    ours = pg.stream(pg.begin(1, 1), pg.origin(OURS), pg.insert(5, [b"0", b""]), pg.commit(1, 2))
    data = (
        pg.stream(pg.relation(5, "public", "t", COLUMNS))
        + ours
        + b"".join(
            pg.stream(
                pg.begin(k, k), pg.message("headrace.tag", b"%d" % k), pg.insert(5, [b"1", b""]), pg.commit(k, k + 1)
            )
            for k in range(3, 3 + 2 * count, 2)
        )
    )
    decoder, at, found = PostgresLogDecoder(options()), 0, []
    array = np.frombuffer(data, np.uint8)
    while at < len(data):
        chunk = decoder.decode(array, at, rows_max=rows_max)
        assert chunk.consumed > 0
        at += chunk.consumed
        found += [
            (int(scn), chunk.tags[number].value)
            for scn, number, open_ in zip(chunk.order_scn, chunk.tag, chunk.commit_scn == 0, strict=True)
            if not open_
        ]
    assert found == [(1, b"\x00\xff"), *((k, b"%d" % k) for k in range(3, 3 + 2 * count, 2))]
    again = decode(ours, decoder)
    assert again.tags[again.tag[0]].value == b"\x00\xff"
    assert len(again.tags) < 2000


@pytest.mark.parametrize("rows_max", [1, 2, 100])
def test_message_after_the_first_change_tags_nothing_in_any_chunk(rows_max: int) -> None:
    """Otherwise rules would keep one half of the transaction and drop the other."""
    data = pg.stream(
        pg.begin(1, 1),
        pg.insert(5, [b"1"]),
        pg.insert(5, [b"2"]),
        pg.message("headrace.tag", b"\x0b"),
        pg.insert(5, [b"3"]),
        pg.commit(1, 2),
        pg.begin(3, 3),
        pg.message("headrace.tag", b"\x0c"),
        pg.insert(5, [b"4"]),
        pg.commit(3, 4),
    )
    decoder, place, found = PostgresLogDecoder(options()), 0, dict[int, Any]()
    while place < len(data):
        chunk = decode(data, decoder, place, rows_max=rows_max)
        place += chunk.consumed
        for number, tag in zip(chunk.transaction_id.tolist(), chunk.tag.tolist(), strict=True):
            found.setdefault(number, set()).add(None if tag < 0 else chunk.tags[tag].value)
    assert list(found.values()) == [{None}, {b"\x0c"}]


@pytest.mark.parametrize("content", [b"", b"x" * 2001])
def test_message_without_a_valid_tag_is_never_a_null_tag(content: bytes) -> None:
    data = pg.stream(pg.begin(1, 1), pg.message("headrace.tag", content), pg.insert(5, [b"1"]), pg.commit(1, 2))
    chunk = decode(data, PostgresLogDecoder(options()))
    assert chunk.tags[chunk.tag[0]] == Tag(value=b"")


def test_our_messages_are_reported_and_others_skipped() -> None:
    data = pg.stream(
        pg.begin(100, 1),
        pg.message("headrace", b"marker", position=50),
        pg.message("other", b"x" * 100),
        pg.commit(100, 108),
        pg.message("headrace.now", b"", position=120, transactional=False),
        pg.message("head", b""),
    )
    chunk = decode(data)
    assert chunk.messages == ((100, "headrace", b"marker"), (120, "headrace.now", b""))
    assert (chunk.commit_scn.tolist(), chunk.first_row.tolist()) == ([108], [0, 0])


def test_values_in_another_form_correct_the_description_before_their_row() -> None:
    """A user-defined type without a send function arrives as text in a binary stream, and nothing in the stream
    announces it.
    """
    columns = [("id", INT4, True), ("x", 20_000, False), ("y", 20_000, False)]
    row = b"I" + (5).to_bytes(4, "big") + b"N" + (3).to_bytes(2, "big")
    one = b"b" + (4).to_bytes(4, "big") + b"\0\0\0\1"
    data = pg.stream(
        pg.begin(1, 1),
        pg.type_name(20_000, "s", "odd"),
        pg.relation(5, "s", "t", columns),
        row + one + b"nn",
        row + one + b"n" + b"t" + (1).to_bytes(4, "big") + b"z",
        pg.commit(1, 2),
    )
    decoder = PostgresLogDecoder(options(binary=True))
    first = decode(data, decoder)
    assert len(first.command) == 1
    assert [c.is_binary for c in first.versions[0].columns] == [True, True, True]
    second = decode(data, decoder, first.consumed)
    assert (len(second.command), second.commit_scn.tolist()) == (1, [2])
    assert [c.is_binary for c in second.versions[0].columns] == [True, False, False]
    assert second.value_binary.tolist() == [True, False, False]
    again = decode(pg.stream(pg.relation(5, "s", "t", columns)), decoder)
    assert [c.is_binary for c in again.versions[0].columns] == [True, False, False], "the correction is kept"


def test_built_in_type_without_binary_form_is_text_from_the_start() -> None:
    [version] = decode(
        pg.stream(pg.relation(5, "s", "t", [("a", ACLITEM, False), ("b", INT4, True)])),
        PostgresLogDecoder(options(binary=True)),
    ).versions
    assert [c.is_binary for c in version.columns] == [False, True]


def test_reset_forgets_the_open_transaction() -> None:
    decoder = PostgresLogDecoder(options())
    decode(pg.stream(pg.begin(1, 1), pg.insert(5, [b"1"])), decoder)
    decoder.reset()
    chunk = decode(pg.stream(pg.begin(1, 1), pg.insert(5, [b"1"]), pg.commit(1, 2)), decoder)
    assert (chunk.continues, chunk.first_row.tolist(), chunk.commit_scn.tolist()) == (False, [0, 1], [2])


def test_commit_alone_in_a_chunk_closes_the_transaction() -> None:
    decoder = PostgresLogDecoder(options())
    decode(pg.stream(pg.begin(1, 9), pg.insert(5, [b"1"])), decoder)
    assert len(decode(b"", decoder).transaction_id) == 0
    chunk = decode(pg.stream(pg.commit(1, 2)), decoder)
    assert (chunk.continues, chunk.transaction_id.tolist(), chunk.commit_scn.tolist()) == (True, [9], [2])
    assert chunk.first_row.tolist() == [0, 0]


@pytest.mark.parametrize(
    "data",
    [
        b"E\0\0\0\5x",
        pg.stream(pg.insert(5, [b"1"])),  # outside of a transaction
        pg.stream(pg.begin(1, 1), pg.begin(2, 2)),
        pg.stream(pg.begin(1, 1), b"I\0\0\0\5N\0\1t\0\0\0\xff1"),  # longer than its message
        pg.stream(pg.begin(1, 1), b"I\0\0\0\5N\0\2n"),  # fewer values than announced
        pg.stream(pg.begin(1, 1), b"D\0\0\0\5N\0\1n"),  # a DELETE with new values
        pg.stream(b"S\0\0\0\1\0"),  # streaming was not requested
        pg.stream(pg.begin(1, 1))[:-1],  # truncated
        pg.stream(b"R\0\0\0\5s"),
        pg.stream(b"C\0"),
    ],
)
def test_damaged_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


# ---------------------------------------------------------------- against the reference


@dataclass
class Reference:
    """The same decoding, one message after the other in plain Python."""

    rows: list[tuple[object, ...]] = field(default_factory=list)
    transactions: list[list[object]] = field(default_factory=list)
    messages: list[tuple[int, str, bytes]] = field(default_factory=list)
    tables: dict[int, str] = field(default_factory=dict)

    def read(self, data: bytes) -> Reference:
        i = 0
        while i < len(data):
            end = i + 1 + int.from_bytes(data[i + 1 : i + 5], "big")
            if data[i + 5 : i + 6] == b"w":
                self.one(data[i + 30 : end])
            i = end
        return self

    def one(self, m: bytes) -> None:
        def number(at: int, length: int) -> int:
            return int.from_bytes(m[at : at + length], "big")

        kind = chr(m[0])
        if kind == "B":
            self.transactions.append([number(17, 4), number(1, 8), 0, number(9, 8) + pg.EPOCH_US, None, len(self.rows)])
        elif kind == "C":
            self.transactions[-1][2] = number(10, 8)
        elif kind == "O":
            self.transactions[-1][4] = tag_of_origin(m[9:-1].decode())
        elif kind == "R":
            self.tables[number(1, 4)] = m[5:].split(b"\0")[1].decode()
        elif kind == "T":
            count = number(1, 4)
            numbers = tuple(number(6 + 4 * n, 4) for n in range(count))
            self.rows.append(("T", numbers, bool(m[5] & 1), bool(m[5] & 2)))
        elif kind == "M":
            prefix, _, rest = m[10:].partition(b"\0")
            if prefix.startswith(b"headrace"):
                scn = self.transactions[-1][1] if m[1] & 1 else number(2, 8)
                self.messages.append((int(scn), prefix.decode(), rest[4:]))  # type: ignore[call-overload]
        elif kind in "IUD":
            tuples: dict[str, list[bytes | int]] = {}
            at = 5
            while at < len(m):
                part, columns = chr(m[at]), number(at + 1, 2)
                at += 3
                tuples[part] = []
                for _ in range(columns):
                    form = chr(m[at])
                    if form in "tb":
                        length = number(at + 1, 4)
                        tuples[part].append(m[at + 5 : at + 5 + length])
                        at += 5 + length
                    else:
                        tuples[part].append({"n": ABSENT if part == "K" else NULL, "u": UNCHANGED}[form])
                        at += 1
            old = tuples.get("K") or tuples.get("O")
            image = "K" if "K" in tuples else "O" if "O" in tuples else ""
            self.rows.append((kind, number(1, 4), image, old, tuples.get("N"), self.tables.get(number(1, 4))))


def decoded(pieces: list[bytes], rows_max: int) -> Reference:
    """All rows and transactions of the real decoder, reassembled from its chunks."""
    decoder = PostgresLogDecoder(options())
    out = Reference()
    tables: dict[int, tuple[str, int]] = {}
    for piece in pieces:
        data, start = np.frombuffer(piece, np.uint8), 0
        while start < len(piece):
            chunk = decoder.decode(data, start, rows_max=rows_max)
            assert chunk.consumed > 0 or len(chunk.command) > 0
            assert len(chunk.command) <= rows_max
            start += chunk.consumed
            tables |= {v.object_number: (v.name, len(v.columns)) for v in chunk.versions}
            first = len(out.rows)
            for row in range(len(chunk.command)):
                out.rows.append(_row(piece, chunk, row, tables))
            for t in range(len(chunk.transaction_id)):
                facts = [
                    int(chunk.transaction_id[t]),
                    int(chunk.order_scn[t]),
                    int(chunk.commit_scn[t]),
                    int(chunk.commit_time_us[t]),
                    chunk.tags[chunk.tag[t]] if chunk.tag[t] >= 0 else None,
                ]
                if t == 0 and chunk.continues:
                    assert out.transactions[-1][2] == 0
                    out.transactions[-1][2:5] = facts[2:]
                    assert out.transactions[-1][:2] == facts[:2]
                else:
                    out.transactions.append([*facts, first + int(chunk.first_row[t])])
            assert chunk.first_row[-1] == len(chunk.command)
            out.messages += chunk.messages
    return out


def _row(data: bytes, chunk: DecodedChunk, row: int, tables: dict[int, tuple[str, int]]) -> tuple[object, ...]:
    command = Command(int(chunk.command[row]))
    if command is Command.TRUNCATE:
        return ("T", *chunk.truncates[row])
    number = int(chunk.object_number[row])
    name, count = tables[number]
    old = new = None
    if chunk.old_first[row] >= 0:
        old = row_values(data, chunk, int(chunk.old_first[row]), count)
    if chunk.new_first[row] >= 0:
        new = row_values(data, chunk, int(chunk.new_first[row]), count)
    image = {OldImage.NONE: "", OldImage.KEY: "K", OldImage.FULL: "O"}[OldImage(int(chunk.old_image[row]))]
    return (command.name[0], number, image, old, new, name)


def random_stream(random_: random.Random, size: int) -> list[bytes]:
    """Valid pgoutput messages: tables whose shapes change, all commands, origins, messages, empty transactions."""
    shapes: dict[int, int] = {}
    out: list[bytes] = []
    scn = 1000

    def value() -> bytes | str | None:
        return random_.choice([None, b"", random_.randbytes(random_.randint(1, 40))])

    for transaction in range(size):
        scn += random_.randint(1, 100)
        order, scn = scn, scn + random_.randint(1, 50)
        out.append(pg.begin(order, transaction + 1, pg.EPOCH_US + transaction * 17))
        if random_.random() < 0.3:
            out.append(pg.origin(random_.choice([OURS, "pg_1", "headrace:t/other/0:01"])))
        for _ in range(random_.choice([0, 1, 1, 2, 30])):
            number = random_.randint(1, 4)
            if number not in shapes or random_.random() < 0.05:
                shapes[number] = random_.randint(1, 5)
                columns = [(f"c{n}", INT4, n == 0) for n in range(shapes[number])]
                out.append(pg.relation(number, "s", f"t{number}_{random_.randint(0, 9)}", columns))
            key: list[bytes | str | None] = [b"k", *[None] * (shapes[number] - 1)]
            full = [value() for _ in range(shapes[number])]
            new = [random_.choice([value(), pg.UNCHANGED]) for _ in range(shapes[number])]
            out.append(
                random_.choice(
                    [
                        pg.insert(number, full),
                        pg.update(number, new),
                        pg.update(number, new, key=key),
                        pg.update(number, new, old=full),
                        pg.delete(number, key=key),
                        pg.delete(number, old=full),
                        pg.truncate([number, 9], cascade=True),
                        pg.message("headrace", b"m"),
                        pg.message("other", b"m"),
                    ]
                )
            )
        out.append(pg.commit(order, scn))
        if random_.random() < 0.1:
            out.append(pg.message("headrace.x", b"n", position=scn, transactional=False))
    return out


@pytest.mark.seeded
@hypothesis.settings(max_examples=scaled(36, 1000))
@hypothesis.given(seed=st.integers(0, 2**32), rows_max=st.integers(1, 50))
def test_any_stream_in_any_pieces_decodes_like_the_reference(seed: int, rows_max: int) -> None:
    random_ = random.Random(seed)
    frames = [
        pg.frame(m) if random_.random() < 0.9 else pg.frame(m) + pg.keepalive(1) for m in random_stream(random_, 12)
    ]
    pieces, at = [], 0
    while at < len(frames):
        count = random_.randint(1, 40)
        pieces.append(b"".join(frames[at : at + count]))
        at += count
    expected = Reference().read(b"".join(frames))
    actual = decoded(pieces, rows_max)
    assert actual.rows == expected.rows
    assert actual.transactions == expected.transactions
    assert actual.messages == expected.messages


# ---------------------------------------------------------------- the stream reader's kernel


@dataclass
class Scanned:
    """The result of one or several scans of growing data."""

    at: int
    kept: bytes
    objects: list[int]
    describers: list[int]
    state: list[int]

    def __getitem__(self, index: int) -> int:
        return self.state[index]


def scanned(data: bytes, *, is_open: bool = False, objects: int = 10) -> Scanned:
    buffer = np.frombuffer(bytearray(data), np.uint8) if data else np.zeros(1, np.uint8)
    state, found, describers = (np.zeros(size, np.int64) for size in (k.SCAN_STATE_SIZE, objects, objects))
    state[k.SCAN_OPEN] = is_open
    at = k.scan(buffer, 0, len(data), state, found, describers)
    kept = buffer[: state[k.SCAN_KEPT]].tobytes()
    listed = describers[: state[k.SCAN_DESCRIBERS]].tolist()
    return Scanned(int(at), kept, found[: state[k.SCAN_OBJECTS]].tolist(), listed, state.tolist())


def test_tables_described_in_any_order_are_read_with_their_own_columns() -> None:
    """At the beginning of a stream thousands are described one by one, and each goes to its place."""
    rng, decoder, columns = random.Random(1), PostgresLogDecoder(options()), {}
    for _ in range(200):
        number = rng.randrange(50)
        columns[number] = rng.randrange(1, 5)
        described = pg.relation(number, "s", "t", [(f"c{n}", TEXT, False) for n in range(columns[number])])
        changed = rng.sample(sorted(columns), min(3, len(columns)))
        data = pg.stream(
            pg.begin(90, 1),
            described,
            *(pg.insert(each, [b"x"] * columns[each]) for each in changed),
            pg.commit(90, 98),
        )
        chunk = decoder.decode(np.frombuffer(data, np.uint8), 0, rows_max=100)
        assert chunk.consumed == len(data)
        assert chunk.object_number.tolist() == changed
        objects, first, forms = decoder._table_index
        assert dict(zip(objects.tolist(), np.diff(first).tolist(), strict=True)) == columns
        assert forms.shape == (sum(columns.values()),)


def test_scan_names_each_transaction_that_describes_or_truncates_a_table() -> None:
    described = pg.stream(
        pg.begin(90, 7), pg.relation(5, "s", "t", COLUMNS), pg.relation(6, "s", "u", COLUMNS), pg.commit(90, 98)
    )
    plain = pg.stream(pg.begin(98, 8), pg.insert(5, [b"1"]), pg.commit(98, 99))
    truncating = pg.stream(pg.begin(99, 9), pg.truncate([5]), pg.commit(99, 110))
    assert scanned(described + plain + truncating).describers == [7, 9]


def test_scan_leaves_type_names_to_the_chunk_of_their_table() -> None:
    """A chunk that cannot list another table ends before the type names that the next table needs."""
    tables = [pg.relation(number, "s", "t", COLUMNS) for number in range(3)]
    names = [pg.type_name(20_000 + number, "s", "x") for number in range(3)]
    frames = [pg.frame(message) for pair in zip(names, tables, strict=True) for message in pair]
    found = scanned(b"".join(frames), objects=2)
    assert found.kept == b"".join(frames[:4])
    assert found.at == len(found.kept)
    found = scanned(b"".join([*frames[:4], pg.keepalive(1), *frames[4:]]), objects=2)
    assert found.kept == b"".join(frames[:4])


def test_scan_takes_whole_frames_and_drops_keepalives() -> None:
    one = pg.stream(pg.begin(90, 1), pg.relation(5, "s", "t", COLUMNS))
    two = pg.stream(pg.insert(5, [b"1", b"2"]), pg.commit(90, 98))
    data = one + pg.keepalive(80) + two + pg.keepalive(120, reply=True) + b"d\0\0"
    found = scanned(data)
    assert found.at == len(data) - 3
    assert found.kept == one + two
    assert found.objects == [5]
    assert (found[k.SCAN_OPEN], found[k.SCAN_END_SCN], found[k.SCAN_COMMIT_SCN]) == (0, 120, 98)
    assert found[k.SCAN_COMMIT_END] == len(one + two)
    assert (found[k.SCAN_WANTS_ANSWER], found[k.SCAN_FOLLOWS]) == (1, k.MORE)


def long_message(prefix: str, length: int, *, transactional: bool = True) -> bytes:
    return pg.frame(pg.message(prefix, b"x" * length, transactional=transactional))


@pytest.mark.parametrize("prefix", ["", "other", "head", "headrac", "headrace" + "x" * 33])
@pytest.mark.parametrize("length", [0, 100, 1 << 20])
@pytest.mark.parametrize("transactional", [True, False])
def test_scan_result_does_not_depend_on_foreign_messages(prefix: str, length: int, transactional: bool) -> None:
    """Counts, positions and the ends of transactions ignore a message that does not go into redo."""
    other = long_message(prefix, length, transactional=transactional)
    frames = [
        pg.frame(message)
        for message in (
            pg.begin(90, 1),
            pg.relation(5, "s", "t", COLUMNS),
            pg.insert(5, [b"1", b"2"]),
            pg.commit(90, 98),
            pg.begin(100, 2),
            pg.commit(100, 108),
            pg.begin(110, 3),
        )
    ]
    expected = scanned(b"".join(frames))
    found = scanned(b"".join([other, *(frame + other for frame in frames)]))
    assert (found.kept, found.objects, found.describers) == (expected.kept, expected.objects, expected.describers)
    assert found.state == expected.state
    assert decode(found.kept).commit_scn.tolist() == [98, 108, 0]


def test_scan_skips_a_foreign_message_as_its_bytes_arrive() -> None:
    """Its remaining bytes are skipped in whatever transaction they arrive."""
    begun, message = pg.stream(pg.begin(90, 1)), long_message("other", 1 << 20)
    found = scanned(begun + message[:100])
    assert (found.at, found.kept) == (len(begun) + 100, begun)
    assert found[k.SCAN_SKIP] == len(message) - 100
    # The message cannot be classified before its prefix has arrived.
    assert scanned(begun + message[:35]).at == len(begun)


@pytest.mark.parametrize(
    ("prefix", "length", "kept"),
    [("headrace.marker", 4096, 4096), ("headrace.tag", 8192, 8192), ("headrace.track", 8193, 8192)],
)
def test_scan_keeps_our_messages_up_to_a_bound(prefix: str, length: int, kept: int) -> None:
    begun, ended = pg.stream(pg.begin(90, 1)), pg.stream(pg.commit(90, 98))
    found = scanned(pg.keepalive(1) + begun + long_message(prefix, length) + ended)
    assert found.kept == begun + long_message(prefix, kept) + ended
    assert found[k.SCAN_COMMIT_END] == len(found.kept)


def test_truncated_message_of_ours_keeps_its_meaning() -> None:
    """A tag that is too long becomes an empty one, which is never NULL; a label is its beginning."""
    data = pg.stream(
        pg.begin(90, 1),
        pg.message("headrace.tag", b"t" * 100_000),
        pg.message("headrace.track", b"l" * 100_000),
        pg.insert(5, [b"1"]),
        pg.commit(90, 98),
    )
    kept = scanned(data).kept
    assert len(kept) < 20_000
    chunk = decode(kept)
    assert chunk.tags[chunk.tag[0]] == Tag(value=b"")
    [(_, prefix, content)] = chunk.messages
    assert (prefix, label_of_message(content)) == ("headrace.track", label_of_message(b"l" * 100_000))


def test_bound_on_messages_exceeds_the_length_of_ours() -> None:
    longest = max((TAG_PREFIX, TRACK_PREFIX, MARKER_PREFIX), key=len)
    assert len(pg.frame(pg.message(longest, b""))) <= k.MESSAGE_HEAD_BYTES - k.MESSAGE_CONTENT_MAX
    assert max(TAG_BYTES_MAX, LABEL_BYTES_MAX, _REDO_ROOM_BYTES) < k.MESSAGE_CONTENT_MAX


@pytest.mark.seeded
@hypothesis.given(seed=st.integers(0, 2**32))
def test_piecewise_scan_keeps_the_same_of_long_messages(seed: int) -> None:
    random_ = random.Random(seed)
    frames = [
        random_.choice([pg.frame(pg.insert(5, [b"1"])), pg.keepalive(7)])
        if random_.random() < 0.5
        else long_message(
            random_.choice(["headrace.tag", "headrace.track", "other"]), random_.choice([10, 8192, 8193, 30_000])
        )
        for _ in range(random_.randint(1, 8))
    ]
    data = b"".join(frames)
    expected = scanned(data)
    buffer = np.zeros(len(data) + 1, np.uint8)
    state, found, describers = (np.zeros(size, np.int64) for size in (k.SCAN_STATE_SIZE, 100, 100))
    taken = filled = came = 0
    while came < len(data):
        piece = data[came : came + random_.choice([1, 40, 5000, 20_000])]
        came += len(piece)
        buffer[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
        at = int(k.scan(buffer, taken, filled, state, found, describers))
        taken = int(state[k.SCAN_KEPT])
        # At most the head of one message that may be dropped or cut is held.
        assert filled - at <= k.MESSAGE_HEAD_BYTES
        rest = buffer[at:filled].copy()
        buffer[taken : taken + len(rest)] = rest
        filled = taken + len(rest)
    assert buffer[:taken].tobytes() == expected.kept
    assert state[k.SCAN_SKIP] == 0


def test_commit_end_is_where_the_last_transaction_ends() -> None:
    done, begun = pg.stream(pg.begin(90, 1), pg.commit(90, 98)), pg.stream(pg.begin(110, 2), pg.insert(5, [b"1"]))
    found = scanned(pg.keepalive(1) + done + begun)
    assert found.kept[: found[k.SCAN_COMMIT_END]] == done
    assert found[k.SCAN_OPEN] == 1


def test_scan_reports_truncates() -> None:
    truncate = pg.stream(pg.begin(90, 1), pg.truncate([5]), pg.commit(90, 98))
    assert scanned(pg.keepalive(1) + truncate)[k.SCAN_TRUNCATES] == 1
    assert scanned(pg.stream(pg.begin(90, 1), pg.insert(5, [b"T"]), pg.commit(90, 98)))[k.SCAN_TRUNCATES] == 0


def test_keepalive_inside_a_transaction_promises_nothing() -> None:
    found = scanned(pg.stream(pg.begin(90, 1)) + pg.keepalive(500))
    assert (found[k.SCAN_OPEN], found[k.SCAN_END_SCN], found[k.SCAN_TOLD]) == (1, 0, 500)
    assert scanned(pg.keepalive(500), is_open=True)[k.SCAN_END_SCN] == 0


def test_scan_stops_at_errors_and_ends_of_the_stream() -> None:
    data = pg.stream(pg.begin(1, 1))
    assert scanned(data + b"E\0\0\0\x05\0").at == len(data)
    assert scanned(data + b"E\0\0\0\x05\0")[k.SCAN_FOLLOWS] == k.OTHER
    assert scanned(data + b"d\0\0\0\x05q")[k.SCAN_FOLLOWS] == k.DAMAGED


def test_scan_stops_when_more_tables_are_described_than_it_can_name() -> None:
    frames = [pg.frame(pg.relation(n, "s", "t", COLUMNS)) for n in range(4)]
    found = scanned(b"".join(frames), objects=3)
    assert (found.at, found.objects, found[k.SCAN_FOLLOWS]) == (sum(len(f) for f in frames[:3]), [0, 1, 2], k.MORE)


@pytest.mark.seeded
@hypothesis.given(seed=st.integers(0, 2**32))
def test_piecewise_scan_never_separates_a_type_from_its_table(seed: int) -> None:
    """Type names are held back until the table description that needs them arrives, whatever is in between."""
    random_ = random.Random(seed)
    frames: list[bytes] = []
    for _ in range(random_.randint(1, 12)):
        kind = random_.choice("YYRIkMm")
        if kind == "Y":
            # Each its own number: the check below must not take one for another.
            frames.append(pg.frame(pg.type_name(20_000 + len(frames), "s", "x" * random_.randint(0, 30))))
        elif kind == "R":
            frames.append(pg.frame(pg.relation(5, "s", "t", COLUMNS)))
        elif kind == "I":
            frames.append(pg.frame(pg.insert(5, [b"1"])))
        elif kind == "M":
            frames.append(pg.frame(pg.message("headrace.tag", b"x" * random_.randint(0, 30))))
        elif kind == "m":
            prefix = random_.choice(["", "other", "headrac", "headrace" + "x" * 30])
            frames.append(pg.frame(pg.message(prefix, b"x" * random_.randint(0, 200))))
        else:
            frames.append(pg.keepalive(7))
    data = b"".join(frames)
    expected = [f for f in frames if f[5:6] == b"w"]
    while expected and expected[-1][30:31] == b"Y":
        expected.pop()
    expected = [f for f in expected if f[30:31] != b"M" or b"headrace.tag\0" in f]
    buffer = np.zeros(len(data) + 1, np.uint8)
    state, found, describers = (np.zeros(size, np.int64) for size in (k.SCAN_STATE_SIZE, 100, 100))
    taken = filled = 0
    came = 0
    while came < len(data):
        piece = data[came : came + random_.randint(1, 60)]
        came += len(piece)
        buffer[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
        at = int(k.scan(buffer, taken, filled, state, found, describers))
        taken = int(state[k.SCAN_KEPT])
        rest = buffer[at:filled].copy()
        buffer[taken : taken + len(rest)] = rest
        filled = taken + len(rest)
        last = max((i for i in range(len(frames)) if sum(map(len, frames[: i + 1])) <= came), default=-1)
        # A message in between, which no server sends, is classified before it is whole.
        is_last = frames[last + 1 : last + 2] and frames[last + 1][30:31] != b"M"
        if last >= 0 and is_last and frames[last][30:31] == b"Y" and frames[last][5:6] == b"w":
            assert not buffer[:taken].tobytes().endswith(frames[last])
    assert buffer[:taken].tobytes() == b"".join(expected)


def test_describe_finds_every_table_with_its_types_and_changes_nothing() -> None:
    data = pg.stream(
        pg.begin(1, 1),
        pg.type_name(20_000, "s", "mood"),
        pg.relation(5, "s", "t", [("m", 20_000, True)]),
        pg.insert(5, [b"x"]),
        pg.relation(6, "s", "u", COLUMNS),
        pg.commit(1, 2),
    )
    decoder = PostgresLogDecoder(options())
    versions = decoder.describe(np.frombuffer(data, np.uint8))
    assert [(v.qualified_name, v.columns[0].type_name) for v in versions] == [
        ("s.t", "s.mood"),
        ("s.u", "pg_catalog.int4"),
    ]
    first = decode(data, decoder)
    assert versions[0] == first.versions[0], "the version equals the decoder's own"
    assert decoder.describe(np.zeros(0, np.uint8)) == ()
    with pytest.raises(ProtocolError):
        decoder.describe(np.frombuffer(data[:-1], np.uint8))


# ---------------------------------------------------------------- speed


def _best(data: bytes, rows_max: int) -> tuple[float, int]:
    best, rows = float("inf"), 0
    array = np.frombuffer(data, np.uint8)
    for _ in range(3):
        decoder, start, rows = PostgresLogDecoder(options()), 0, 0
        began = time.perf_counter()
        while start < len(data):
            chunk = decoder.decode(array, start, rows_max=rows_max)
            start, rows = start + chunk.consumed, rows + len(chunk.command)
        best = min(best, time.perf_counter() - began)
    return best, rows


@pytest.mark.slow
@pytest.mark.soak
def test_decoding_speed_is_reported(record_property: Callable[[str, object], None]) -> None:
    """Nothing is asserted about absolute time: the figures go into the report (run with -s)."""
    row: list[bytes | str | None] = [
        b"123456",
        b"7",
        b"some text value 12",
        b"12.50",
        b"2026-01-01 00:00:00+00",
        b"0.5",
        b"v12",
        b"2026-01-01",
    ]
    columns = [(f"c{n}", TEXT, n == 0) for n in range(8)]
    bulk = (
        pg.stream(pg.begin(1, 1), pg.relation(5, "s", "t", columns))
        + pg.frame(pg.insert(5, row)) * 200_000
        + pg.stream(pg.commit(1, 2))
    )
    small = [pg.stream(pg.relation(5, "s", "t", columns))]
    small += [
        pg.stream(
            pg.begin(n, n),
            pg.update(5, row),
            pg.update(5, row),
            pg.update(5, row),
            pg.insert(5, row),
            pg.commit(n, n + 1),
        )
        for n in range(2, 40_002, 2)
    ]
    for name, data, rows_max in (
        ("bulk", bulk, 65_536),
        ("bulk, 4096 rows at a time", bulk, 4096),
        ("OLTP", b"".join(small), 65_536),
    ):
        seconds, rows = _best(data, rows_max)
        record_property(name, f"{rows / seconds / 1e6:.1f} M rows/s")
        print(f"{name}: {rows} rows in {seconds * 1e3:.1f} ms: {rows / seconds / 1e6:.1f} M rows/s")
        assert rows == (80_000 if name == "OLTP" else 200_000)
