"""The redo log of a source under its contract: log writer and miners, driven by the test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.ports import LogStream
from headrace.lcr.batch import LcrBatch
from headrace.lcr.scn import FIRST_SCN, Scn
from headrace.redo.mining.miner import Miner
from headrace.redo.writing.log_writer import LogWriter
from headrace.rules.rule import RuleSet
from tests.support.databases.source_contract import TOPOLOGY, SourceHarness
from tests.support.redo.redo_logs import mine

_WAIT_S = 120.0  # generous, for a busy machine
_READ_TIMEOUT_S = 0.2


class SourceRedo:
    """Redo of one database.

    Args:
        harness: the database, prepared.
        folder: of the redo.
        rules: of the miners.
    """

    def __init__(self, harness: SourceHarness, folder: Path, rules: RuleSet) -> None:
        self._harness, self._folder, self._rules = harness, folder, rules
        self._writer = LogWriter(
            folder,
            "dbs1",
            decoder_factory=harness.decoder,
            dictionary_build=partial(harness.source.dictionary_build, TOPOLOGY),
            segment_bytes=256 << 10,
            redo_bytes_max=1 << 30,
            record_bytes=16 << 10,
        )
        self._stream: LogStream = self._opened()
        self._writer.attach(self._stream)

    def write(self) -> None:
        """Write one record, if there is something to write."""
        self._writer.step(_READ_TIMEOUT_S)

    def has(self, words: bytes) -> bool:
        """Return whether the redo so far has these bytes in a row."""
        return any(words in file.read_bytes() for file in self._folder.rglob("*") if file.is_file())

    @property
    def is_open(self) -> bool:
        """Whether the redo ends in the middle of a transaction."""
        return self._writer._log.state.is_open

    def catch_up(self) -> None:
        """Write everything committed before this call."""
        target, deadline = self._harness.source.write_marker(b"caught up?"), time.monotonic() + _WAIT_S
        while self._writer.position.scn < target or self._writer.awaits_build:
            assert time.monotonic() < deadline
            self.write()

    def interrupt(self) -> None:
        """Break the stream and begin another one, which sends an open transaction again."""
        self._writer.detach()
        self._stream.close()
        self._stream = self._opened()
        self._writer.attach(self._stream)

    def miner(self, start: int = FIRST_SCN) -> Miner:
        """Return a miner that begins at an SCN."""
        return Miner(self._folder, "dbs1", Scn(start), self._rules, self._harness.decoder)

    def mine(self, miner: Miner, **bounds: int) -> Iterator[LcrBatch]:
        """Yield what a miner finds in the redo so far."""
        return mine(miner, self._writer, **bounds)

    def close(self) -> None:
        """Close the redo and the stream."""
        self._writer.close()
        self._stream.close()

    def _opened(self) -> LogStream:
        """Open a stream; the server may need a moment to see that the last one has ended."""
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                return self._harness.source.open_stream(
                    TOPOLOGY,
                    self._writer.start_scn,
                    timeline=self._writer.timeline,
                    last_transaction=self._writer.last_transaction,
                    last_commit_scn=self._writer.last_commit_scn,
                )
            except DatabaseUnavailable:
                assert time.monotonic() < deadline
