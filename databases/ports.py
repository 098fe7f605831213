"""What Headrace needs of a database, as ports. Every connector passes one contract suite (`tests/contract`).

A connector has a source half (`SourceDatabase`, `LogStream`, `LogDecoder`) and a destination half
(`DestinationDatabase`, `DestinationSession`); what reads and writes whole tables is in `databases.copying`. Positions are SCNs here; a connector translates its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from databases.copying import TableWriter
from streams.scn import FIRST_SCN

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from streams.lcr_batch import ColumnValues, Command, TableVersion
    from streams.scn import ObjectNumber, Scn
    from streams.tags import Tag

# --------------------------------------------------------------------------- source: the log


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How the bytes of a log stream are to be read; stored in every redo segment's header.

    Args:
        database_kind: which connector's decoder reads the bytes ("postgres", "memory").
        system_identifier: which database cluster wrote the log; never changes for a site.
        timeline: of the log; changes at failover.
        binary: values in the database's binary form where a type has one.
        encoding: of text, as the database names it.
        server_version: major version number, e.g. 18.
    """

    database_kind: str
    system_identifier: str
    timeline: int
    binary: bool
    encoding: str
    server_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Whole messages from a log stream, as they came.

    Args:
        data: the messages' bytes, framed so that the connector's decoder can read them; may be empty.
        end_scn: the source has sent everything it will ever send of transactions that committed up to here.
            Moves with keepalives too, when only other tables change; 0: not told in this chunk.
        commit_scn: commit SCN of the last transaction that ends in `data`; 0: none ends.
        is_open: a transaction is open after `data`.
        objects: tables whose description appears in `data` (relation messages).
        commit_end: bytes of `data` up to the end of the last transaction that ends in it, where mining can
            begin without having seen what was before; 0: none ends, or not told (restarts then begin earlier).
    """

    data: bytes
    end_scn: Scn
    commit_scn: Scn
    is_open: bool
    objects: tuple[ObjectNumber, ...] = ()
    commit_end: int = 0


class LogStream(Protocol):
    """An open stream of the source's log. Transactions come whole, one after the other, in commit order."""

    @property
    def options(self) -> StreamOptions:
        """How to read the bytes."""
        ...

    @property
    def start_scn(self) -> Scn:
        """Where the stream begins: it brings every transaction that commits after this SCN.

        What the stream was opened with; for FIRST_SCN where the source last knew us durable.
        """
        ...

    def read(self, timeout_s: float) -> LogChunk | None:
        """Take what has arrived, in gulps; answers keepalives.

        Args:
            timeout_s: how long to wait when nothing is there.

        Returns:
            The next whole messages (bounded by the stream's gulp size), or None when nothing came.

        Raises:
            DatabaseUnavailable: the connection broke: open a new stream.
        """
        ...

    def confirm(self, scn: Scn) -> None:
        """Tell the source that everything up to `scn` is durable here: it may drop its log below."""
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryTable:
    """One table in a dictionary build: what the log itself does not tell.

    Args:
        object_number: the source's number of the table (of a partition: its own).
        owner: schema of the table that LCRs shall name; of a partition: of its partitioned root.
        name: likewise.
        stored_owner: schema of the table where the rows are stored (the partition's own); else as `owner`.
        stored_name: likewise.
    """

    object_number: ObjectNumber
    owner: str
    name: str
    stored_owner: str
    stored_name: str


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
        consumed: bytes that were decoded; the caller goes on from there (decoding stops right before a
            table description that follows row changes, so that all rows of a chunk have one version each).
        versions: table descriptions that came before the chunk's rows, as the log gives them: `owner`/`name`
            are the stored table's; the caller maps partitions through its dictionary.
        command: uint8[n], `Command` per row; n rows in source order.
        object_number: int64[n].
        old_image: uint8[n], `OldImage` of the row's old values (NONE: no old values in the log).
        old_first: int64[n], index of the row's first old value in the value arrays; -1 for none.
        new_first: int64[n], likewise of its first new value.
        value_offset: int64[v], where the value's bytes begin.
        value_length: int32[v], their number, or NULL, UNCHANGED.
        value_binary: bool[v], the value is in binary form.
        truncates: row number -> (object numbers, cascade, restart identity).
        transaction_id: int64[t]; transactions that have at least one record in this chunk, in order; the
            first may have begun in an earlier chunk (`continues`), the last may be open (`commit_scn` 0).
        order_scn: int64[t].
        commit_scn: int64[t].
        commit_time_us: int64[t].
        tag: int16[t], index into `tags`, -1: NULL. The log may give a transaction's tag behind its begin, before its first
            row: a chunk that ends between the two says -1, and the next one, which continues it, is right.
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
    """Turns log bytes into arrays. Keeps only what a transaction in progress needs between two calls."""

    def decode(self, data: NDArray[np.uint8], start: int, *, rows_max: int) -> DecodedChunk:
        """Decode whole messages from `data[start:]`.

        Stops at its end, at `rows_max` rows, or at a table description that follows rows.

        Args:
            data: bytes of one redo DATA record (always whole messages).
            start: where to begin.
            rows_max: stop after that many rows (a transaction may then continue in the next call).
        """
        ...

    def describe(self, data: NDArray[np.uint8]) -> tuple[TableVersion, ...]:
        """Every table description in `data` (whole messages), in order; neither needs nor changes any state.

        The log writer's and a restarting miner's way to the dictionary without decoding row changes. `owner`
        and `name` are the stored table's, as in `DecodedChunk.versions`; `version` need not be set.
        """
        ...

    def reset(self) -> None:
        """Forget the transaction in progress (a RESUME record: the source sends it again, whole)."""
        ...


# --------------------------------------------------------------------------- source: administration


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a preflight found.

    Args:
        path: what it is about ("sites.dbs1", "sites.dbs1 table public.t").
        problem: what is wrong.
        fix: the statement or setting that mends it.
        is_error: replication cannot start; False: a warning the operator should know.
    """

    path: str
    problem: str
    fix: str
    is_error: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """One thing that `prepare`, instantiation or apply would do to a database, for `headrace plan`.

    Args:
        statement: as it would be sent (shortened where it repeats), without secrets.
        effect: what it creates or changes, in one sentence.
        lock: what it locks, how, and how long; empty: nothing that a user's statement could wait for.
        breaks: user statements that would start to fail, and why; empty: none.
        is_done: the database has it already: `up` changes nothing.
    """

    statement: str
    effect: str
    lock: str = ""
    breaks: tuple[str, ...] = ()
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedApply:
    """An apply process, as far as its destination notices it.

    Args:
        name: of the apply process.
        source: whose changes it applies.
        parallelism: apply servers, a session each.
        tag: what marks its changes.
    """

    name: str
    source: str
    parallelism: int
    tag: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table the rules select at a source: root tables and plain tables, never partitions."""

    owner: str
    name: str
    columns: tuple[str, ...]
    is_partitioned: bool
    row_estimate: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTable:
    """A table whose changes are in the log, and what it is called now. A name stands for many tables over time.

    Args:
        identity: of the table and of the unbroken time in which its changes have been captured, as the connector writes
            it, with the source database's own. A table keeps it when it is renamed. It is another one when the table was
            dropped and made again, and when its changes were not captured for a while.
        owner, name: what the table is called now; the root of a partitioned one.
        object_numbers: its own number and those of its partitions, as table descriptions in the log have them.
    """

    identity: str
    owner: str
    name: str
    object_numbers: tuple[ObjectNumber, ...]


class Snapshot(Protocol):
    """A consistent view of the source that other sessions can share while it is held open."""

    @property
    def scn(self) -> Scn:
        """Transactions with `commit_scn <= scn` are in it, later ones are not: the instantiation SCN."""
        ...

    @property
    def name(self) -> str:
        """What other sessions of the same source need to see it."""
        ...

    def close(self) -> None:
        """Let go of it; idempotent."""
        ...


class SourceDatabase(Protocol):
    """A database whose changes are captured. One instance per process; not shared between threads."""

    def tables(self, rules: Sequence[object]) -> tuple[SourceTable, ...]:
        """Every table at least one of the rule sets (`rules.rule.RuleSet`) selects, by owner and name."""
        ...

    def table_versions(self, tables: Sequence[SourceTable]) -> tuple[TableVersion, ...]:
        """These tables as the log will describe them: for comparing them with a destination's beforehand."""
        ...

    def preflight(self, rules: Sequence[object], *, streams: int) -> tuple[Finding, ...]:
        """What keeps this database from being a source. `streams`: log streams and snapshots needed at once."""
        ...

    def plan(self, topology: str, rules: Sequence[object]) -> tuple[PlannedStatement, ...]:
        """What `prepare` would do now, in order, without doing it; what is there already is marked as done."""
        ...

    def prepare(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Create or adjust what the source needs (publication, then slot), idempotently.

        Returns:
            The statements that were run, for the plan and the log.
        """
        ...

    def open_stream(self, topology: str, start: Scn, *, allow_binary: bool = True) -> LogStream:
        """Open the log stream from `start` (FIRST_SCN: where the source last knew us durable).

        Args:
            topology: whose stream.
            start: see above.
            allow_binary: False: in text form, whatever the tables' types are.

        Raises:
            LogGone: the source no longer has `start`, or the slot is new or ahead of it.
        """
        ...

    def check_stream(self, topology: str, options: StreamOptions) -> None:
        """Tell whether the published tables, as they are now, can travel as an open stream's options say.

        Raises:
            UnsupportedType: one cannot; drop what was read and open another stream, which takes another form.
        """
        ...

    def check_prepared(self, topology: str, start: Scn) -> None:
        """Tell whether what `prepare` created is still there; asked every second while the log is read.

        Args:
            topology: whose.
            start: how far redo is durable.

        Raises:
            LogGone: it is not, and changes are missing in the log stream since then.
        """
        ...

    def retained_bytes(self, topology: str) -> int | None:
        """Bytes of log that the database keeps for this topology; None: nothing is prepared that would make it keep any."""
        ...

    def holding_up(self) -> tuple[str, ...]:
        """Who holds up a call of ours at this database now (transactions that are open), a sentence each; empty: nobody.

        Called on a connection of its own, while `prepare` or `open_snapshot` waits on another one.
        """
        ...

    def uncaptured(self, topology: str, rules: Sequence[object]) -> tuple[str, ...]:
        """Tables the rules select that were created after `prepare`: nothing of them is in the log until it is repeated."""
        ...

    def captured(self, topology: str) -> tuple[CapturedTable, ...]:
        """Every table whose changes are in the log, by owner and name.

        Whoever copies a table asks before the snapshot is taken: the copy is of this table, with every change after the
        snapshot in the log, as long as the identity is the same afterwards.
        """
        ...

    def dictionary_build(self, topology: str) -> DictionaryBuild:
        """Read the published tables from the catalog."""
        ...

    def write_marker(self, content: bytes) -> Scn:
        """Write a marker into the log now. Everything committed before this call has a commit SCN <= the answer."""
        ...

    def current_scn(self) -> Scn:
        """The end of the log now."""
        ...

    def open_snapshot(self, topology: str) -> Snapshot:
        """Export a snapshot for instantiation (a temporary slot's)."""
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Drop what `prepare` created (`down --purge`); returns the statements."""
        ...

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...


# --------------------------------------------------------------------------- destination


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationColumn:
    """A destination table's column, in the same words as `streams.lcr_batch.Column`."""

    name: str
    number: int  # the database's own; the column keeps it when it is renamed
    type_name: str
    type_number: int
    type_modifier: int
    not_null: bool
    has_default: bool
    is_generated: bool  # computed by the database: never written
    is_identity_always: bool  # written with OVERRIDING SYSTEM VALUE, never SET
    equality: str  # canonical form for hashing: see `spark_apply.driver.dependencies` ("integer", "bytes", ..., "none")
    converted: tuple[str, ...] = ()  # the source's types whose values an operator's function converts


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationTable:
    """What apply must know of a table before it writes to it.

    Args:
        owner, name: as LCRs name it.
        columns: in the table's order.
        key: positions in `columns` that identify a row: the primary key, else the smallest unique NOT NULL
            index; empty: all columns together (duplicates are possible).
        unique_keys: column positions of every unique constraint and unique index, `key` included.
        serialise: dependencies cannot be told from values (no canonical equality in a key column, partial or
            expression unique index, exclusion constraint, no key): transactions on it run one after the other.
        ordered: collapsing could be noticed (several unique keys, replica triggers): rows in source order.
    """

    owner: str
    name: str
    columns: tuple[DestinationColumn, ...]
    key: tuple[int, ...]
    unique_keys: tuple[tuple[int, ...], ...]
    serialise: bool
    ordered: bool


@dataclass(frozen=True, kw_only=True)
class Write:
    """Rows of one table, one command and one set of columns, written as one set.

    Args:
        table: where.
        version: the source's description of the columns the values are in.
        command: INSERT, UPDATE, DELETE. (TRUNCATE goes through `DestinationSession.truncate`.)
        old: values that find and check the row, all columns of `version`; None for INSERT.
        new: values to write, all columns of `version`; None for DELETE.
        match_columns: positions in `version.columns` that find the row, taken from `old`.
        compare_columns: positions whose old value must equal the row's.
        set_columns: positions to write (INSERT: to insert).
    """

    table: DestinationTable
    version: TableVersion
    command: Command
    old: ColumnValues | None
    new: ColumnValues | None
    match_columns: tuple[int, ...]
    compare_columns: tuple[int, ...]
    set_columns: tuple[int, ...]

    @property
    def row_count(self) -> int:
        """Rows in the write."""
        values = self.new if self.new is not None else self.old
        return 0 if values is None else values.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScnRange:
    """Transactions with `after < commit_scn <= through`."""

    after: Scn
    through: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyProgress:
    """What is durable at a destination for one apply process.

    Args:
        epoch: of the incarnation that wrote last.
        low_watermark: everything up to here is applied or in the error queue.
        above: ranges above the low watermark that are applied too, disjoint and ascending.
        ahead_scn: above the low watermark while copied tables join (`DestinationDatabase.join_tables`): up to here every
            table but those that are JOINING is applied.
    """

    epoch: int
    low_watermark: Scn
    above: tuple[ScnRange, ...]
    ahead_scn: Scn = FIRST_SCN


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTransaction:
    """A transaction in the error queue, for listings; row values only in `readable`.

    Args:
        number: identifies it at the destination; ascending in the order of failing.
        apply: the apply process.
        source: source site.
        transaction_id, commit_scn, commit_time_us: of the source transaction.
        row_count: LCRs in it.
        failed_position: 0-based position of the LCR that failed; -1: it waits behind `depends_on`.
        depends_on: number of the error transaction it waits behind; 0: it failed itself.
        conflict_type: "update_missing", "insert_exists", ...; empty for other errors.
        sqlstate: of the database's error, if any.
        message: what happened, no row values.
        created_us: when, microseconds since the epoch.
        readable: the failing LCR's values as text, "column=value"; only for `errors show`.
    """

    number: int
    apply: str
    source: str
    transaction_id: int
    commit_scn: Scn
    commit_time_us: int
    row_count: int
    failed_position: int
    depends_on: int
    conflict_type: str
    sqlstate: str
    message: str
    created_us: int
    readable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Instantiation:
    """What is known at a destination about one table's instantiation.

    Args:
        source: the site it was copied from.
        identity: which table of that site it is (`CapturedTable.identity`): it is recorded once per identity.
        owner, name: the table, as LCRs name it; what it was called when this was recorded.
        scn: changes with `commit_scn <= scn` are in the copy: the instantiation SCN; 0: not known yet.
        state: PENDING, COPYING, COMPARING, COPIED (equal; later changes are not applied yet), JOINING (they are being
            applied, up to `ApplyProgress.ahead_scn`; below that the low watermark says which), DONE, KEPT (its rows were kept,
            only the SCN was set), FAILED, or LEFT (it was copied, and then its changes did not come here for a while: its
            rows are out of date).
        row_count: rows copied (KEPT: not counted, 0).
        digest: of the rows, as the connector writes it; empty when not computed.
        problem: why it FAILED; empty otherwise.
    """

    source: str
    identity: str
    owner: str
    name: str
    scn: Scn
    state: str
    row_count: int = 0
    digest: str = ""
    problem: str = ""


class DestinationSession(TableWriter, Protocol):
    """One apply server's session: writes data and progress in one transaction. Tagged; fenced by its epoch.

    Every method raises `DatabaseUnavailable` when the outcome is unknown or the environment is at fault,
    `DataError` (with `context["sqlstate"]`) when the database refuses the data, `FencedError` when a newer
    epoch or a newer incarnation of the server exists. After any error the transaction must be rolled back.

    What `commit` answered is on disk, whatever the database's own settings are.
    """

    def describe(self, owner: str, name: str, *, fresh: bool = False) -> DestinationTable | None:
        """Describe a table; None when it does not exist. Cached unless `fresh`."""
        ...

    def missing_alter(self, version: TableVersion) -> str:
        """What must be done before rows of `version` can be written (statements for a person); empty: it fits.

        `write` checks the same and raises `UnfitTableError` with it as the hint. Describe `fresh` to look again.
        """
        ...

    def begin(self) -> None:
        """Start a transaction (sent together with the first write)."""
        ...

    def write(self, writes: Sequence[Write]) -> tuple[int, ...]:
        """Execute the writes in order in as few round trips as possible; rows affected per write."""
        ...

    def truncate(self, tables: Sequence[DestinationTable], *, restart_identity: bool) -> None:
        """Truncate these tables together, and no other: a table that refers to one of them must be among them.

        Args:
            tables: what travelled in one TRUNCATE; not empty.
            restart_identity: restart the sequences their columns own.

        Raises:
            DataError: a table that is not among them refers to one of them.
        """
        ...

    def savepoint(self) -> None:
        """Set (or move) the one savepoint used between rows."""
        ...

    def rollback_to_savepoint(self) -> None:
        """Undo what came after the savepoint; the transaction can go on."""
        ...

    def commit(self, applied: Sequence[ScnRange], low_watermark: Scn) -> None:
        """Record progress and commit, atomically.

        Args:
            applied: what this transaction applied.
            low_watermark: the coordinator's, to fold older ranges into.

        Raises:
            DatabaseUnavailable: the outcome is unknown. `ask_outcome` on a new session tells.
        """
        ...

    def ask_outcome(self, applied: Sequence[ScnRange]) -> bool:
        """After a commit whose answer was lost: was it made?

        Call it on a new session of the same server, before anything is committed on it. `open_session` has
        waited until the old one is gone, so the answer is final.

        Args:
            applied: what the lost commit was to record; not empty.
        """
        ...

    def rollback(self) -> None:
        """Undo the transaction; idempotent."""
        ...

    def put_error(
        self, transaction: ErrorTransaction, batch: bytes, key_hashes: NDArray[np.uint64],
        *, part: int, readable: Sequence[str] = (),
    ) -> int:
        """Write a failed transaction (or one part of it) into the error queue, inside the transaction.

        Args:
            transaction: its description; `number` 0 for a new one (the answer is its number).
            batch: an LcrBatch with the transaction's rows, serialized.
            key_hashes: what later transactions must be checked against.
            part: 0-based part of a transaction that needs several batches. `transaction.row_count` is the part's;
                `commit_scn` and `commit_time_us` are known from the last part on.
            readable: the failing LCR's values as text, "column=value" (only shown by `errors show`).
        """
        ...

    def delete_error(self, number: int) -> bool:
        """Delete an error transaction with all its parts, inside the transaction; False when it is not there.

        `errors execute`: together with the data it applies, then `commit` with nothing in `applied`.
        """
        ...

    def close(self) -> None:
        """Close the connection; idempotent."""
        ...


class DestinationDatabase(Protocol):
    """A database that changes are applied to: catalog, progress, error queue, instantiation.

    An epoch ends when a newer one is raised, and when the database may have lost what it answered to be committed: after a
    crash, a failover, a restart, a restore from a backup. From then on `open_session`, `record_low_watermark` and
    `record_instantiation` raise `DestinationRestarted` until `raise_epoch`, which reads what is really there. So nothing
    that one epoch was told to be committed is lost while it lasts, and no later commit hides that something was.
    """

    def preflight(self, topology: str, *, sessions: int) -> tuple[Finding, ...]:
        """What keeps this database from being a destination.

        Args:
            topology: whose apply processes are meant: what it has here already is not needed twice.
            sessions: sessions and origins it needs.
        """
        ...

    def plan(self, topology: str, applies: Sequence[PlannedApply]) -> tuple[PlannedStatement, ...]:
        """What `prepare`, instantiation and these apply processes would do, in order, without doing it."""
        ...

    def prepare(self, topology: str) -> tuple[str, ...]:
        """Create or upgrade the `headrace` schema, idempotently; returns the statements run."""
        ...

    def raise_epoch(self, topology: str, apply: str) -> ApplyProgress:
        """Fence out older incarnations, and only then read the progress.

        Raises the epoch, ends their sessions and waits until they are gone. A caller that was overtaken meanwhile, by
        a newer epoch, ends nothing of it and writes nothing.

        Raises:
            FencedError: it was overtaken.
            DatabaseUnavailable: the epoch may be raised; call again.
        """
        ...

    def progress(self, topology: str, apply: str) -> ApplyProgress | None:
        """Read the progress without fencing anyone; None: this apply process never ran."""
        ...

    def record_low_watermark(self, topology: str, apply: str, epoch: int, scn: Scn) -> None:
        """Make a low watermark durable that moved without data.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
        """
        ...

    def open_session(
        self, topology: str, apply: str, *, server: int, epoch: int, tag: bytes, incarnation: int = 1,
    ) -> DestinationSession:
        """Open one apply server's session. Ends the session of an older incarnation, and an older one of its own.

        Args:
            topology: name of the topology.
            apply: name of the apply process.
            server: number of the apply server.
            epoch: as `raise_epoch` answered.
            tag: marks the session's changes.
            incarnation: of the server within the epoch. A lower one than the highest that was ever seen ends nothing.

        Raises:
            FencedError: a newer epoch or a newer incarnation exists.
            DestinationRestarted: see the class.
            DatabaseUnavailable: try again.
        """
        ...

    def describe(self, owner: str, name: str) -> DestinationTable | None:
        """Describe a table from the catalog, never cached."""
        ...

    def errors(self, topology: str, apply: str | None = None) -> tuple[ErrorTransaction, ...]:
        """List the error queue in order."""
        ...

    def error_batches(self, number: int) -> Iterator[bytes]:
        """The serialized LcrBatches of one error transaction, part by part."""
        ...

    def delete_error(self, topology: str, number: int) -> bool:
        """Delete an error transaction (`errors delete`); False when it is not there."""
        ...

    def instantiations(self, topology: str, apply: str) -> tuple[Instantiation, ...]:
        """What is recorded about the instantiation of an apply process's tables, by owner and name."""
        ...

    def record_instantiation(
        self, topology: str, apply: str, epoch: int, instantiation: Instantiation, *, replaces: Collection[str] = (),
    ) -> None:
        """Record a table's instantiation, replacing what was recorded of this identity before.

        Args:
            topology: whose apply process it is.
            apply: its name.
            epoch: of the driver that records it.
            instantiation: what is known now.
            replaces: identities of tables whose place at the destination it takes; their records are removed with it.

        Raises:
            FencedError: a newer epoch exists.
            DestinationRestarted: see the class.
        """
        ...

    def leave_out(self, topology: str, apply: str, *, kept: Collection[str]) -> tuple[Instantiation, ...]:
        """Record that changes of all but some tables do not come to an apply process any more.

        What was copied of them is LEFT. A table whose rows were never ours (KEPT, or without an SCN) is forgotten.
        Called before the first change can be missing. A driver that still runs is fenced out.

        Args:
            topology: whose apply process it is.
            apply: its name.
            kept: identities of the tables whose changes come.

        Returns:
            The tables that left, as they were recorded before.
        """
        ...

    def join_tables(
        self, topology: str, apply: str, epoch: int, joining: Sequence[Instantiation], *, through: Scn
    ) -> ApplyProgress:
        """Let copied tables take part, in one transaction: the low watermark goes back to the oldest copy among them.

        Tables that joined before become DONE (without a digest: KEPT), these become JOINING. The low watermark becomes the oldest instantiation SCN
        among them, or `through` if that is lower; `ahead_scn` becomes `through`. What the sessions recorded before
        is forgotten: each must be opened again before it commits. Calling it again with the same arguments changes nothing.

        Args:
            topology: its name.
            apply: the apply process.
            epoch: its current one.
            joining: the tables, as they are recorded.
            through: the low watermark. The caller knows that nothing above it is applied, that it is not below the
                recorded `ahead_scn`, that no session is in a transaction, and that no copy's SCN was told upstream as durable.

        Returns:
            The progress as it is now.

        Raises:
            FencedError: a newer epoch exists.
        """
        ...

    def preflight_tables(self, versions: Sequence[TableVersion]) -> tuple[Finding, ...]:
        """What keeps these source tables from being applied here: missing tables, columns that do not fit, ..."""
        ...

    def error_key_hashes(self, topology: str, apply: str) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """(number, key hashes) of every error transaction of an apply process."""
        ...

    def remove(self, topology: str) -> tuple[str, ...]:
        """Fence out and forget a topology's apply processes, with all that was made for them (`down --purge`).

        Returns:
            What was done, and what had to stay and why, a line each.
        """
        ...

    def forget(self, topology: str, apply: str) -> tuple[str, ...]:
        """Fence out one apply process and forget its progress, its instantiations and its errors: it begins anew.

        Returns:
            What was done, a line each.
        """
        ...

    def close(self) -> None:
        """Close every connection; idempotent."""
        ...
