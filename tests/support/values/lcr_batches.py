"""LCR batches for tests: made by hand or at random, and compared."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from headrace.lcr.batch import (
    Column,
    Command,
    LcrBatch,
    OldImage,
    Partition,
    RowGroup,
    TableVersion,
    Transactions,
    Truncate,
)
from headrace.lcr.tags import Tag
from headrace.lcr.values import ABSENT, NULL, UNCHANGED, ColumnValues


def column_values(columns: list[list[bytes | int]]) -> ColumnValues:
    """Return values column by column; an int is NULL, UNCHANGED or ABSENT."""
    rows = len(columns[0]) if columns else 0
    lengths = np.zeros((len(columns), rows), np.int32)
    for number, column in enumerate(columns):
        lengths[number] = [value if isinstance(value, int) else len(value) for value in column]
    data = b"".join(value for column in columns for value in column if isinstance(value, bytes))
    starts = np.zeros(len(columns) + 1, np.int64)
    np.cumsum(np.maximum(lengths, 0).sum(axis=1), out=starts[1:])
    return ColumnValues(lengths=lengths, data=np.frombuffer(bytearray(data), np.uint8), starts=starts)


def table_version(name: str = "t", columns: int = 2, *, owner: str = "public", version: int = 1) -> TableVersion:
    """Return a table of int4 columns c0 (the key), c1, ..."""
    return TableVersion(
        object_number=16384,
        version=version,
        owner=owner,
        name=name,
        old_image=OldImage.FULL,
        columns=tuple(
            Column(name=f"c{k}", type_name="pg_catalog.int4", type_number=23, is_key=k == 0) for k in range(columns)
        ),
    )


def transactions(
    commits: list[int], rows: list[int], *, tags: list[int] | None = None, is_open: bool = False
) -> Transactions:
    """Return transactions that commit at `commits`, with that many rows each; order SCN = commit SCN - 1."""
    commit = np.array(commits, np.int64)
    order = commit - 1
    if is_open:
        commit[-1] = 0
    return Transactions(
        transaction_id=np.array(commits, np.int64) + 1000,
        order_scn=order,
        commit_scn=commit,
        commit_time_us=np.array(commits, np.int64) * 1000,
        tag=np.array(tags if tags is not None else [-1] * len(commits), np.int16),
        first_row=np.concatenate([[0], np.cumsum(rows)]).astype(np.int32),
    )


def insert_batch(
    commits: list[int],
    *,
    source: str = "dbs1",
    previous: int = 0,
    through: int | None = None,
    rows_each: int = 1,
    value: bytes = b"\0\0\0\1",
    is_open: bool = False,
    continues: bool = False,
    first_position: int = 0,
) -> LcrBatch:
    """Return a batch of INSERTs into public.t; without commits it is a progress mark to `through`."""
    if through is None:
        through = previous if is_open or not commits else commits[-1]
    if not commits:
        return LcrBatch(source=source, previous_scn=previous, through_scn=through)
    count = rows_each * len(commits)
    keys: list[bytes | int] = [int(k).to_bytes(4, "big") for k in range(count)]
    group = RowGroup(
        table=0,
        command=Command.INSERT,
        row_numbers=np.arange(count, dtype=np.int32),
        old=None,
        new=column_values([keys, [value] * count]),
    )
    return LcrBatch(
        source=source,
        previous_scn=previous,
        through_scn=through,
        continues=continues,
        first_position=first_position,
        tables=(table_version(),),
        transactions=transactions(commits, [rows_each] * len(commits), is_open=is_open),
        groups=(group,) if count else (),
    )


# no database allows the character 0 in a name
_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
_CARRIED = st.one_of(st.sampled_from([NULL, ABSENT]), st.binary(max_size=12))
_UPDATED = st.one_of(_CARRIED, st.just(UNCHANGED))


@st.composite
def table_versions(draw: st.DrawFn) -> TableVersion:
    columns = draw(
        st.lists(
            st.builds(
                Column,
                name=_NAMES,
                type_name=_NAMES,
                type_number=st.integers(0, 2**32),
                is_key=st.booleans(),
                type_modifier=st.integers(-1, 2**31 - 1),
                is_binary=st.booleans(),
            ),
            max_size=4,
            unique_by=lambda column: column.name,
        )
    )
    return TableVersion(
        object_number=draw(st.integers(0, 2**32)),
        version=draw(st.integers(0, 2**64 - 1)),
        owner=draw(_NAMES),
        name=draw(_NAMES),
        columns=tuple(columns),
        old_image=draw(st.sampled_from(OldImage)),
        partition=draw(st.none() | st.builds(Partition, owner=_NAMES, name=_NAMES, rows=_NAMES)),
        root_number=draw(st.integers(0, 2**32)),
    )


@st.composite
def lcr_batches(draw: st.DrawFn) -> LcrBatch:
    """Draw any batch that keeps the promises of `headrace.lcr.batch`: also open, continuing, empty, with TRUNCATEs."""
    kind = draw(st.sampled_from(["mark", "whole", "first part", "middle part", "last part"]))
    previous = draw(st.integers(0, 2**60))
    source = draw(_NAMES)
    if kind == "mark":
        return LcrBatch(source=source, previous_scn=previous, through_scn=previous + draw(st.integers(0, 100)))
    is_open, continues = kind in ("first part", "middle part"), kind in ("middle part", "last part")
    counts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=1 if kind != "whole" else 5))
    commits = [previous + 10 * (k + 1) for k in range(len(counts))]
    tags = tuple(draw(st.lists(st.builds(Tag, value=st.binary(max_size=4), topology=_NAMES), max_size=2)))
    owners = transactions(
        commits,
        counts,
        is_open=is_open,
        tags=[draw(st.integers(-1, len(tags) - 1)) for _ in counts],
    )
    tables = tuple(draw(st.lists(table_versions(), min_size=1, max_size=3)))
    places: dict[tuple[int, Command], list[int]] = {}
    for row in range(sum(counts)):
        places.setdefault((draw(st.integers(0, len(tables) - 1)), draw(st.sampled_from(Command))), []).append(row)
    groups, truncates = [], []
    for (table, command), rows in places.items():
        if command is Command.TRUNCATE:
            truncates += [
                Truncate(row_number=row, tables=(table,), cascade=draw(st.booleans()), restart_identity=False)
                for row in rows
            ]
            continue
        width = len(tables[table].columns)
        groups.append(
            RowGroup(
                table=table,
                command=command,
                row_numbers=np.array(rows, np.int32),
                old=None if command is Command.INSERT else draw(_values(width, len(rows), _CARRIED)),
                new=None
                if command is Command.DELETE
                else draw(_values(width, len(rows), _UPDATED if command is Command.UPDATE else _CARRIED)),
            )
        )
    return LcrBatch(
        source=source,
        previous_scn=previous,
        through_scn=previous if is_open else commits[-1],
        continues=continues,
        first_position=draw(st.integers(1, 2**40)) if continues else 0,
        tables=tables,
        tags=tags,
        transactions=owners,
        groups=tuple(groups),
        truncates=tuple(sorted(truncates, key=lambda truncate: truncate.row_number)),
    )


@st.composite
def _values(draw: st.DrawFn, columns: int, rows: int, value: st.SearchStrategy[bytes | int]) -> ColumnValues:
    if columns == 0:
        return ColumnValues(
            lengths=np.zeros((0, rows), np.int32), data=np.empty(0, np.uint8), starts=np.zeros(1, np.int64)
        )
    return column_values([draw(st.lists(value, min_size=rows, max_size=rows)) for _ in range(columns)])


def assert_same_batch(left: LcrBatch, right: LcrBatch) -> None:
    """Assert that everything is equal: positions, tables, tags, arrays with their types, values with their bytes."""
    for name in (
        "source",
        "previous_scn",
        "through_scn",
        "continues",
        "first_position",
        "tables",
        "tags",
        "truncates",
        "ddl",
    ):
        assert getattr(left, name) == getattr(right, name), name
    for name in ("transaction_id", "order_scn", "commit_scn", "commit_time_us", "tag", "first_row"):
        _assert_same_array(getattr(left.transactions, name), getattr(right.transactions, name))
    assert len(left.groups) == len(right.groups)
    for one, other in zip(left.groups, right.groups, strict=True):
        assert (one.table, one.command) == (other.table, other.command)
        _assert_same_array(one.row_numbers, other.row_numbers)
        _assert_same_values(one.old, other.old)
        _assert_same_values(one.new, other.new)


def _assert_same_values(left: ColumnValues | None, right: ColumnValues | None) -> None:
    assert (left is None) == (right is None)
    if left is None or right is None:
        return
    for name in ("lengths", "data", "starts"):
        _assert_same_array(getattr(left, name), getattr(right, name))


def _assert_same_array(left: np.ndarray, right: np.ndarray) -> None:
    assert left.dtype == right.dtype
    assert left.shape == right.shape
    assert (left == right).all()
