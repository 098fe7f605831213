"""Reads a log stream to a position and decodes it into plain rows."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from headrace.databases.ports import LogDecoder, LogStream
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.batch import Command, OldImage, TableVersion
from headrace.lcr.tags import Tag

TIMEOUT_S = 120.0  # generous, for a busy machine


@dataclass
class Row:
    """One row change; values are bytes, NULL, UNCHANGED or ABSENT by column name."""

    command: Command
    table: TableVersion
    old: dict[str, bytes | int]
    new: dict[str, bytes | int]
    old_image: OldImage


@dataclass
class ReadTransaction:
    transaction_id: int
    order_scn: int
    commit_scn: int
    commit_time_us: int
    tag: Tag | None
    rows: list[Row] = field(default_factory=list)
    truncates: list[tuple[tuple[int, ...], bool, bool]] = field(default_factory=list)


@dataclass
class Reading:
    """Collects what was read; the next `through` continues."""

    stream: LogStream
    decoder: LogDecoder | None = None
    transactions: list[ReadTransaction] = field(default_factory=list)
    messages: list[tuple[int, str, bytes]] = field(default_factory=list)
    versions: dict[int, TableVersion] = field(default_factory=dict)
    data: bytearray = field(default_factory=bytearray)
    end_scn: int = 0
    chunks: int = 0
    rows_max: int = 1000

    def __post_init__(self) -> None:
        self.decoder = self.decoder or PostgresLogDecoder(self.stream.options)

    def through(self, scn: int, *, timeout_s: float = TIMEOUT_S) -> Reading:
        """Read until the source has sent everything up to `scn`."""
        deadline = time.monotonic() + timeout_s
        while self.end_scn < scn:
            assert time.monotonic() < deadline, f"the stream stopped at {self.end_scn}, {scn} was wanted"
            self.one(0.2)
        return self

    def one(self, timeout_s: float = 5.0) -> bool:
        """Read one chunk, if one arrives."""
        chunk = self.stream.read(timeout_s)
        if chunk is None:
            return False
        self.chunks += 1
        self.data += chunk.data
        self.end_scn = max(self.end_scn, chunk.end_scn)
        truncates = sum(len(t.truncates) for t in self.transactions)
        self.take(chunk.data)
        assert chunk.has_truncates == (sum(len(t.truncates) for t in self.transactions) > truncates)
        assert chunk.is_open == bool(self.transactions and self.transactions[-1].commit_scn == 0)
        if chunk.commit_scn:
            assert chunk.commit_scn == max(t.commit_scn for t in self.transactions)
            assert 0 < chunk.commit_end <= len(chunk.data)
        return True

    def rows(self) -> list[Row]:
        return [row for transaction in self.transactions for row in transaction.rows]

    def take(self, data: bytes) -> None:
        """Decode bytes that consist of complete messages."""
        array, start = np.frombuffer(data, np.uint8), 0
        while start < len(data):
            chunk = self.decoder.decode(array, start, rows_max=self.rows_max)
            start += chunk.consumed
            for version in chunk.versions:
                self.versions[version.object_number] = version
            self.messages += chunk.messages
            for t in range(len(chunk.transaction_id)):
                if t == 0 and chunk.continues:
                    transaction = self.transactions[-1]
                    transaction.commit_scn = int(chunk.commit_scn[t])
                else:
                    transaction = ReadTransaction(
                        int(chunk.transaction_id[t]),
                        int(chunk.order_scn[t]),
                        int(chunk.commit_scn[t]),
                        int(chunk.commit_time_us[t]),
                        None,
                    )
                    self.transactions.append(transaction)
                transaction.tag = chunk.tags[chunk.tag[t]] if chunk.tag[t] >= 0 else None
                for row in range(int(chunk.first_row[t]), int(chunk.first_row[t + 1])):
                    if row in chunk.truncates:
                        transaction.truncates.append(chunk.truncates[row])
                        continue
                    table = self.versions[int(chunk.object_number[row])]
                    sides: list[dict[str, bytes | int]] = []
                    for first in (int(chunk.old_first[row]), int(chunk.new_first[row])):
                        values: dict[str, bytes | int] = {}
                        for k, column in enumerate(table.columns if first >= 0 else ()):
                            length, offset = int(chunk.value_length[first + k]), int(chunk.value_offset[first + k])
                            values[column.name] = data[offset : offset + length] if length >= 0 else length
                            if length >= 0:
                                assert bool(chunk.value_binary[first + k]) == column.is_binary, column
                        sides.append(values)
                    transaction.rows.append(
                        Row(
                            Command(int(chunk.command[row])),
                            table,
                            sides[0],
                            sides[1],
                            OldImage(int(chunk.old_image[row])),
                        )
                    )
