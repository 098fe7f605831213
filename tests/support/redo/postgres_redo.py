"""A database of the real server with its redo log: log writer and miners, driven by the test."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.postgres.source.database import PostgresSource
from headrace.databases.postgres.source.log_stream.pgoutput import PostgresLogDecoder
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import Rule, RuleSet

RULES = RuleSet(include=(Rule(owner="public"),))
READ_TIMEOUT_S = 0.2  # a caller that waits repeats a read that finds nothing
WAIT_S = 60.0  # time for a server on a busy machine to process what was sent, or to notice a closed connection


def wait_until(holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class RedoSite:
    """A database, its redo log, and a session of its user."""

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn = dsn
        self.folder = folder
        self.user = psycopg.connect(dsn, autocommit=True)
        # The test's thread also does other things, for long on a busy machine; meanwhile the server gets no answers.
        self.user.execute(f"ALTER DATABASE {self.user.info.dbname} SET wal_sender_timeout = 0".encode())
        self.source = PostgresSource(dsn)
        self.writer = self.new_writer()
        self.stream: Any = None

    def new_writer(self) -> LogWriter:
        return LogWriter(
            self.folder,
            "dbs1",
            decoder_factory=PostgresLogDecoder,
            dictionary_build=partial(self.source.dictionary_build, "topo"),
            segment_bytes=256 << 10,
            redo_bytes_max=1 << 30,
            record_bytes=16 << 10,
        )

    def attach(self) -> None:
        """Attach to the log. The server may need a moment to see that the last stream has ended."""

        def opened() -> bool:
            try:
                self.stream = self.source.open_stream(
                    "topo",
                    self.writer.start_scn,
                    timeline=self.writer.timeline,
                    last_transaction=self.writer.last_transaction,
                    last_commit_scn=self.writer.last_commit_scn,
                )
            except DatabaseUnavailable:
                return False
            return True

        wait_until(opened)
        self.writer.attach(self.stream, partial(self.source.check_stream, self.stream.options))

    def catch_up(self, *, has_build: bool = True) -> Scn:
        """Write redo until it holds everything committed before this call.

        With `has_build`, it can then be mined to its end.
        """
        target = self.source.write_marker(b"caught up?")
        while self.writer.position.scn < target or (has_build and self.writer.awaits_build):
            try:
                self.writer.step(READ_TIMEOUT_S)
            except DatabaseUnavailable:
                self.stream.close()
                self.attach()
        return target

    def miner(self, start: int = FIRST_SCN, rules: RuleSet = RULES) -> Miner:
        return Miner(self.folder, "dbs1", Scn(start), rules, PostgresLogDecoder)

    def mine(self, miner: Miner) -> Iterator[LcrBatch]:
        while (batch := miner.next_batch(self.writer.position)) is not None:
            yield batch

    def close(self) -> None:
        self.writer.close()
        if self.stream is not None:
            self.stream.close()
        self.source.close()
        self.user.close()
