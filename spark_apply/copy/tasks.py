"""Copying and digesting table chunks inside Spark tasks.

Like `tasks`, the module imports at its head only what needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spark_apply.server.task import die_with_parent

if TYPE_CHECKING:
    from databases.ports import DestinationSession
    from databases.postgres.table_copy import CopyFormat, TableChunk
    from databases.table_digest import TableDigest
    from protos import apply_pb2 as pb
    from spark_apply.application.task_access import TaskAccess

__all__ = ["copy_pieces", "digest_chunks"]

_RETRY_DELAY_S = 1.0  # after a database did not answer


# --------------------------------------------------------------------------- comparing


def digest_chunks(
    access: TaskAccess, _topology: str, _apply: str, _number: int, items: Iterable[bytes],
) -> Iterator[bytes]:
    """Digest chunks (serialized `DigestItem`s); nothing is written, so Spark may run it again at any time."""
    from databases.postgres.connection import connect
    from protos import apply_pb2 as pb
    from protos.apply_link import fetch_access
    from streams.errors import StreamsError

    die_with_parent()
    found = fetch_access(access.endpoint, access.token)
    with contextlib.ExitStack() as opened:
        connections: dict[bool, Any] = {}
        for data in items:
            item = pb.DigestItem.FromString(data)
            result = pb.DigestResult(table=item.table, is_source=item.is_source)
            try:
                if item.is_source not in connections:
                    dsn = found.source.dsn if item.is_source else found.destination.dsn
                    connections[item.is_source] = opened.enter_context(
                        contextlib.closing(connect(dsn, application_name="headrace compare"))
                    )
                seen = _digest(connections[item.is_source], item)
                result.rows, result.digest = seen.row_count, seen.to_bytes()
            except StreamsError as error:
                connections.pop(item.is_source, None)
                result.problem = error.message
            yield result.SerializeToString()


def _digest(connection: Any, item: pb.DigestItem) -> TableDigest:  # noqa: ANN401 - a psycopg connection
    from databases.postgres.table_copy import TableChunk, digest, use_snapshot

    chunk = TableChunk(
        owner=item.stored.owner, name=item.stored.name, first_block=item.first_block,
        end_block=None if item.end_block < 0 else item.end_block,
    )
    with use_snapshot(connection, item.snapshot):
        return digest(connection, chunk, tuple(item.columns))


# --------------------------------------------------------------------------- copying


def copy_pieces(access: TaskAccess, topology: str, apply: str, worker: int, _items: Iterable[int]) -> Iterator[bytes]:
    """Take pieces from the apply process and do them until there are no more; what became of them it was told already."""
    die_with_parent()
    copier = _Copier(access, topology, apply, worker)
    try:
        copier.run()
    finally:
        copier.close()
    return iter(())


class _Copier:
    def __init__(self, access: TaskAccess, topology: str, apply: str, worker: int) -> None:
        from protos.apply_link import CopyLink

        self._topology, self._apply, self._worker = topology, apply, worker
        self._link = CopyLink(access.endpoint, access.token, worker=worker, incarnation=uuid.uuid4().hex)
        self._source: Any = None
        self._session: DestinationSession | None = None
        self._access: pb.AccessReply | None = None
        self._text_only: set[tuple[str, str]] = set()  # tables whose binary form the destination refused

    def run(self) -> None:
        from protos import apply_pb2 as pb
        from streams.errors import Retry, StreamsError

        self._access = self._link.access()
        outcome: pb.CopyOutcome | None = None
        while True:
            reply = self._link.next(outcome)
            outcome = None
            if reply.WhichOneof("kind") == "done":
                return
            if reply.WhichOneof("kind") != "piece":
                continue
            try:
                outcome = self._do(reply.piece)
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
