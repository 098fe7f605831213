"""Copying and digesting table chunks inside Spark tasks.

Like `tasks`, the module imports at its head only what needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from databases.table_digest import TableDigest
from spark_apply.server.task import TaskAccess, die_with_parent

if TYPE_CHECKING:
    from databases.ports import DestinationSession
    from databases.postgres.table_copy import CopyFormat, TableChunk
    from protos import apply_pb2 as pb

__all__ = ["ChunkDigest", "DigestItem", "copy_pieces", "digest_chunks"]

_SOURCE, _DESTINATION = "source", "destination"
_RETRY_DELAY_S = 1.0  # after a database did not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestItem:
    """One chunk to digest.

    Args:
        table: index of the table in the caller's list.
        side: "source" or "destination".
        owner, name: of the stored table.
        first_block, end_block: see `databases.postgres.table_copy.TableChunk`.
        columns: names, the same for both sides.
        snapshot: exported at that side.
    """

    table: int
    side: str
    owner: str
    name: str
    first_block: int
    end_block: int | None
    columns: tuple[str, ...]
    snapshot: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkDigest:
    """What became of a `DigestItem`. `problem` empty: `digest` is what was found."""

    table: int
    side: str
    digest: TableDigest = field(default_factory=TableDigest)
    problem: str = ""


# --------------------------------------------------------------------------- comparing


def digest_chunks(access: TaskAccess, items: Iterable[DigestItem]) -> Iterator[ChunkDigest]:
    """Digest chunks; nothing is written, so Spark may run it again at any time."""
    from databases.postgres.connection import connect
    from databases.postgres.table_copy import TableChunk, digest, use_snapshot
    from protos.apply_link import fetch_access
    from streams.errors import StreamsError

    die_with_parent()
    found = fetch_access(access.endpoint, access.token)
    dsn = {_SOURCE: found.source.dsn, _DESTINATION: found.destination.dsn}
    with contextlib.ExitStack() as opened:
        connections: dict[str, Any] = {}
        for item in items:
            try:
                if item.side not in connections:
                    connections[item.side] = opened.enter_context(
                        contextlib.closing(connect(dsn[item.side], application_name="headrace compare"))
                    )
                chunk = TableChunk(
                    owner=item.owner, name=item.name, first_block=item.first_block, end_block=item.end_block
                )
                with use_snapshot(connections[item.side], item.snapshot):
                    seen = digest(connections[item.side], chunk, item.columns)
                yield ChunkDigest(table=item.table, side=item.side, digest=seen)
            except StreamsError as error:
                connections.pop(item.side, None)
                yield ChunkDigest(table=item.table, side=item.side, problem=error.message)


# --------------------------------------------------------------------------- copying


def copy_pieces(access: TaskAccess, topology: str, apply: str, worker: int, _rows: Iterable[int]) -> Iterator[int]:
    """Take pieces from the driver and do them until there are no more; gives the number of pieces done."""
    die_with_parent()
    copier = _Copier(access, topology, apply, worker)
    try:
        return iter([copier.run()])
    finally:
        copier.close()


class _Copier:
    def __init__(self, access: TaskAccess, topology: str, apply: str, worker: int) -> None:
        from protos.apply_link import CopyLink

        self._topology, self._apply, self._worker = topology, apply, worker
        self._link = CopyLink(access.endpoint, access.token, worker=worker, incarnation=uuid.uuid4().hex)
        self._source: Any = None
        self._session: DestinationSession | None = None
        self._access: pb.AccessReply | None = None
        self._text_only: set[tuple[str, str]] = set()  # tables whose binary form the destination refused

    def run(self) -> int:
        from protos import apply_pb2 as pb
        from streams.errors import Retry, StreamsError

        self._access = self._link.access()
        done = 0
        outcome: pb.CopyOutcome | None = None
        while True:
            reply = self._link.next(outcome)
            outcome = None
            if reply.WhichOneof("kind") == "done":
                return done
            if reply.WhichOneof("kind") != "piece":
                continue
            try:
                outcome = self._do(reply.piece)
                done += 1
            except StreamsError as error:
                self._disconnect()
                is_final = error.retry is not Retry.TIMED
                outcome = pb.CopyOutcome(piece=reply.piece.piece, problem=error.message, is_final=is_final)
                if not is_final:
                    time.sleep(_RETRY_DELAY_S)

    def close(self) -> None:
        self._disconnect()
        self._link.close()

    # ------------------------------------------------------------------ inside

    def _do(self, piece: pb.CopyPiece) -> pb.CopyOutcome:
        from databases.postgres.table_copy import TableChunk, digest
        from protos import apply_pb2 as pb
        from streams.errors import DatabaseUnavailable

        chunk = TableChunk(
            owner=piece.stored.owner, name=piece.stored.name, first_block=piece.first_block,
            end_block=None if piece.end_block < 0 else piece.end_block,
        )
        columns = tuple(piece.columns)
        if piece.is_digest:
            seen = digest(self._destination(piece), chunk, columns)
        else:
            seen, rows = self._copy(piece, chunk, columns)
            if rows != seen.row_count:
                name = f"{piece.table.owner}.{piece.table.name}"
                raise DatabaseUnavailable(f"{rows} rows of {name} were copied, {seen.row_count} read")
        return pb.CopyOutcome(piece=piece.piece, rows=seen.row_count, digest=seen.to_bytes())

    def _copy(self, piece: pb.CopyPiece, chunk: TableChunk, columns: tuple[str, ...]) -> tuple[TableDigest, int]:
        """Digest and copy a chunk under the snapshot: what was read, and rows written."""
        from databases.postgres.table_copy import digest
        from streams.errors import DatabaseError, DatabaseUnavailable, DestinationRestarted

        table = (piece.table.owner, piece.table.name)
        with self._under_snapshot(piece.snapshot) as source:
            seen = digest(source, chunk, columns)
            if not piece.is_text and table not in self._text_only:
                try:
                    return seen, self._copy_rows(source, piece, chunk, columns, "binary")
                except (DatabaseUnavailable, DestinationRestarted):
                    raise
                except DatabaseError:
                    # The binary form names user-defined element types by their number in one database, among other
                    # things. A COPY is all or nothing; what is really wrong with the rows, the text form refuses too.
                    self._text_only.add(table)
                    self._disconnect()
            else:
                return seen, self._copy_rows(source, piece, chunk, columns, "text")
        with self._under_snapshot(piece.snapshot) as source:
            return seen, self._copy_rows(source, piece, chunk, columns, "text")

    def _copy_rows(
        self, source: Any, piece: pb.CopyPiece, chunk: TableChunk, columns: tuple[str, ...], form: CopyFormat,  # noqa: ANN401
    ) -> int:
        from databases.postgres.table_copy import copy_in, copy_out

        blocks = copy_out(source, chunk, columns, copy_format=form)
        return copy_in(
            self._destination(piece), piece.table.owner, piece.table.name, columns, blocks, copy_format=form
        )

    @contextlib.contextmanager
    def _under_snapshot(self, name: str) -> Iterator[Any]:
        from databases.postgres.table_copy import use_snapshot
        from streams.errors import DatabaseError, DatabaseUnavailable

        source = self._source_connection()
        with contextlib.ExitStack() as reading:
            try:
                reading.enter_context(use_snapshot(source, name))
            except DatabaseError as error:
                raise DatabaseUnavailable(f"the snapshot is gone: {error.message}") from error
            yield source

    def _source_connection(self) -> Any:  # noqa: ANN401 - a psycopg connection
        from databases.postgres.connection import connect

        if self._source is None or self._source.closed:
            assert self._access is not None
            self._source = connect(self._access.source.dsn, application_name=f"headrace {self._topology}/{self._apply} copy")
        return self._source

    def _destination(self, piece: pb.CopyPiece) -> Any:  # noqa: ANN401 - a psycopg connection
        """The connection of this worker's session: tagged, triggers off, fenced like an apply server's."""
        from databases.connectors import open_destination
        from spark_apply.messages import access_from_wire

        if self._session is None:
            assert self._access is not None
            destination = open_destination(access_from_wire(self._access.destination))
            self._session = destination.open_session(
                self._topology, self._apply, server=self._worker, epoch=piece.epoch, tag=piece.tag
            )
        return self._session.connection  # type: ignore[attr-defined]

    def _disconnect(self) -> None:
        source, self._source = self._source, None
        session, self._session = self._session, None
        if source is not None:
            source.close()
        if session is not None:
            session.close()
