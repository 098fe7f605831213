"""The log of a source: its byte stream, dictionary builds, and its decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.lcr.scn import NO_OBJECT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.lcr.batch import TableVersion
    from headrace.lcr.scn import ObjectNumber, Scn
    from headrace.lcr.tags import Tag

__all__ = ["DecodedChunk", "DictionaryBuild", "DictionaryTable", "LogChunk", "LogDecoder", "LogStream", "StreamOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How to read the bytes of a log stream; stored in every redo segment's header.

    Args:
        database_kind: whose decoder reads the bytes ("postgres", "memory").
        system_identifier: the database cluster that wrote the log; never changes for a site.
        timeline: of the log; changes at failover.
        binary: values are in the database's binary form where a type has one.
        encoding: of text, by the database's name for it.
        server_version: major version number, e.g. 18.
        switches: earlier timelines of the log, oldest first, each with the SCN at which the log left it. Empty on the
            first timeline, and where unknown (written by an earlier version).
    """

    database_kind: str
    system_identifier: str
    timeline: int
    binary: bool
    encoding: str
    server_version: int
    switches: tuple[tuple[int, Scn], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Whole messages from a log stream, unchanged.

    Args:
        data: the messages' bytes, framed so that the connector's decoder can read them; may be empty.
        end_scn: the source has sent everything it will ever send of transactions that committed up to here. Keepalives
            move it too, when only other tables change; 0: not in this chunk.
        commit_scn: commit SCN of the last transaction that ends in `data`; 0: none ends.
        is_open: a transaction is open after `data`.
        objects: tables whose description appears in `data` (relation messages).
        commit_end: bytes of `data` up to the end of the last transaction that ends in it. Mining can begin there
            without earlier data. 0: none ends, or unknown (restarts then begin earlier).
        has_truncates: a TRUNCATE appears in `data`: the partitions of its tables must be known before it.
        describers: numbers of the transactions that contain one of these descriptions, or a TRUNCATE. The catalog must
            be read when these are visible (`SourceDatabase.dictionary_build`).
        transaction: number of the last transaction that ends in `data`; 0: none ends.
    """

    data: bytes
    end_scn: Scn
    commit_scn: Scn
    is_open: bool
    objects: tuple[ObjectNumber, ...] = ()
    commit_end: int = 0
    has_truncates: bool = False
    describers: tuple[int, ...] = ()
    transaction: int = 0


class LogStream(Protocol):
    """An open stream of the source's log. Transactions arrive whole, one after another, in commit order."""

    @property
    def options(self) -> StreamOptions:
        """How to read the bytes."""
        ...

    @property
    def start_scn(self) -> Scn:
        """The start position: the stream brings every transaction that commits after this SCN.

        It is the SCN the stream was opened with; for FIRST_SCN, the last position that was confirmed to the source.
        """
        ...

    def read(self, timeout_s: float) -> LogChunk | None:
        """Read what has arrived, in gulps; answers keepalives.

        Args:
            timeout_s: how long to wait for the first message.

        Returns:
            The next whole messages (bounded by the stream's gulp size), or None when none arrived.

        Raises:
            DatabaseUnavailable: the connection broke; open a new stream.
        """
        ...

    def confirm(self, scn: Scn) -> None:
        """Confirm to the source that everything up to `scn` is durable here: it may drop its log below."""
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryTable:
    """One table in a dictionary build: what the log itself does not say.

    Args:
        object_number: the source's number of the table (for a partition, its own).
        owner: schema of the table that LCRs name; for a partition, of its partitioned root.
        name: name of that table.
        stored_owner: schema of the table that stores the rows (for a partition, its own); else as `owner`.
        stored_name: name of that stored table; else as `name`.
        rows: for a partition, which rows of the root it holds (`headrace.lcr.batch.Partition`); else empty.
        root_number: number of the table that LCRs name: for a partition, its root's; else its own. NO_OBJECT: unknown,
            as in redo of earlier versions.
        computed: names of the columns that the source computes and whose values are in the log nevertheless. None:
            unknown, as in redo of earlier versions: any column may be one.
    """

    object_number: ObjectNumber
    owner: str
    name: str
    stored_owner: str
    stored_name: str
    rows: str = ""
    root_number: ObjectNumber = NO_OBJECT
    computed: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryBuild:
    """The source's objects as of `scn`: `headrace dictionary build` and every new segment write one."""

    scn: Scn
    tables: tuple[DictionaryTable, ...]


@dataclass(frozen=True, kw_only=True)
class DecodedChunk:
    """What a decoder found in log bytes: arrays over rows, values and transactions.

    Offsets point into the bytes that were decoded (`data` itself is not copied).

    Args:
        consumed: bytes that were decoded; the caller continues from there. Decoding stops right before a table
            description that follows row changes, so that all rows of a chunk have one version each.
        versions: table descriptions that preceded the chunk's rows, as the log gives them: `owner`/`name` are the
            stored table's; the caller maps partitions through its dictionary.
        command: uint8[n], `Command` per row; n rows in source order.
        object_number: int64[n].
        old_image: uint8[n], `OldImage` of the row's old values (NONE: no old values in the log).
        old_first: int64[n], index of the row's first old value in the value arrays; -1 for none.
        new_first: int64[n], index of the row's first new value; -1 for none.
        value_offset: int64[v], where the value's bytes begin.
        value_length: int32[v], their number, or NULL, UNCHANGED.
        value_binary: bool[v], the value is in binary form.
        truncates: row number -> (object numbers, cascade, restart identity).
        transaction_id: int64[t]; transactions with at least one record in this chunk, in order; the first may have
            begun in an earlier chunk (`continues`), the last may be open (`commit_scn` 0).
        order_scn: int64[t].
        commit_scn: int64[t].
        commit_time_us: int64[t].
        tag: int16[t], index into `tags`, -1: NULL. The log may give a transaction's tag after its begin and before its
            first row: a chunk that ends between the two has -1, and the next one, which continues it, has the tag.
        first_row: int32[t + 1].
        tags: the tags found.
        continues: the first transaction began in an earlier chunk.
        messages: markers and heartbeats found: (order_scn of their transaction, prefix, content).
    """

    consumed: int
    versions: tuple[TableVersion, ...]
    command: NDArray[np.uint8]
    object_number: NDArray[np.int64]
    old_image: NDArray[np.uint8]
    old_first: NDArray[np.int64]
    new_first: NDArray[np.int64]
    value_offset: NDArray[np.int64]
    value_length: NDArray[np.int32]
    value_binary: NDArray[np.bool_]
    truncates: dict[int, tuple[tuple[int, ...], bool, bool]]
    transaction_id: NDArray[np.int64]
    order_scn: NDArray[np.int64]
    commit_scn: NDArray[np.int64]
    commit_time_us: NDArray[np.int64]
    tag: NDArray[np.int16]
    first_row: NDArray[np.int32]
    tags: tuple[Tag, ...]
    continues: bool
    messages: tuple[tuple[int, str, bytes], ...] = ()


class LogDecoder(Protocol):
    """Decodes log bytes into arrays. Between two calls it keeps only what a transaction in progress needs."""

    def decode(self, data: NDArray[np.uint8], start: int, *, rows_max: int) -> DecodedChunk:
        """Decode whole messages from `data[start:]`.

        Stops at the end of `data`, at `rows_max` rows, or at a table description that follows rows.

        Args:
            data: bytes of one redo DATA record (always whole messages).
            start: offset of the first byte to decode.
            rows_max: most rows to decode (a transaction may then continue in the next call).
        """
        ...

    def describe(self, data: NDArray[np.uint8]) -> tuple[TableVersion, ...]:
        """Return every table description in `data` (whole messages), in order; neither needs nor changes any state.

        The log writer and a restarting miner read the dictionary this way, without decoding row changes. `owner` and
        `name` are the stored table's, as in `DecodedChunk.versions`; `version` need not be set.
        """
        ...

    def reset(self) -> None:
        """Drop the transaction in progress (at a RESUME record: the source replays it whole)."""
        ...
