"""Copying and digesting pieces of tables inside Spark tasks; `headrace.databases.ports.copying` reads them.

Like `spark_apply.server.task`, the module imports at the top only modules that need just the standard library.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.databases.ports.copying import NATIVE, PORTABLE, TablePiece
from spark_apply.application.workers import die_with_parent

if TYPE_CHECKING:
    from headrace.databases.ports import DestinationSession
    from headrace.databases.ports.copying import OpenPiece, TableReader
    from headrace.databases.table_digest import TableDigest
    from protos import apply_pb2 as pb
    from spark_apply.application.access.task_access import TaskAccess
    from spark_apply.copy.pieces.reshaped import ReshapedPiece

__all__ = ["CopyPlaces", "PieceCopier", "PieceLink", "copy_pieces", "digest_pieces"]

_RETRY_DELAY_S = 1.0  # after a database did not answer


# --------------------------------------------------------------------------- comparing


def digest_pieces(
    access: TaskAccess,
    _topology: str,
    _apply: str,
    _number: int,
    items: Iterable[bytes],
) -> Iterator[bytes]:
    """Digest pieces of tables in a Spark task; it writes nothing, so Spark may repeat it at any time.

    Args:
        access: endpoint and token of the driver, which knows the databases.
        items: serialized `DigestItem`s: a piece, its side, its columns and its snapshot.

    Yields:
        One serialized `DigestResult` per item. A piece that cannot be read has a `problem` there; the others continue.

    Raises:
        PropagationError: the driver does not answer.
        ProtocolError: another driver runs by now.
    """
    from headrace.base.errors import HeadraceError, Retry
    from headrace.databases.connectors import open_reader
    from protos import apply_pb2 as pb
    from protos.links.apply_link import fetch_access
    from spark_apply.conversation.messages import access_from_wire

    die_with_parent()
    found = fetch_access(access.peer, access.token)
    source, destination = access_from_wire(found.source), access_from_wire(found.destination)
    with contextlib.ExitStack() as opened:
        readers = {
            is_source: opened.enter_context(
                contextlib.closing(open_reader(*sides, application_name="headrace compare"))
            )
            for is_source, sides in ((True, (source, destination)), (False, (destination, source)))
        }
        for data in items:
            item = pb.DigestItem.FromString(data)
            result = pb.DigestResult(table=item.table, is_source=item.is_source)
            place = TablePiece(owner=item.stored.owner, name=item.stored.name, place=item.place, bytes=item.bytes)
            try:
                with readers[item.is_source].open_piece(place, snapshot=item.snapshot) as piece:
                    seen = (_reshaped(piece, item.reshaped) if item.HasField("reshaped") else piece).digest(
                        tuple(item.columns)
                    )
                result.rows, result.digest = seen.row_count, seen.to_bytes()
            except HeadraceError as error:
                readers[item.is_source].close()
                result.problem, result.is_final = error.message, error.retry is not Retry.TIMED
            yield result.SerializeToString()


def _reshaped(piece: OpenPiece, table: pb.ReshapedTable) -> ReshapedPiece:
    from headrace.databases.connectors import value_types
    from spark_apply.copy.pieces.reshaped import ReshapedPiece, ReshapedTable

    return ReshapedPiece(piece, ReshapedTable.from_bytes(table.document), value_types())


# --------------------------------------------------------------------------- copying


class PieceLink(Protocol):
    """A copying task's connection to the board: it reports a piece and takes the next one."""

    def next(self, outcome: pb.CopyOutcome | None) -> pb.CopyReply:
        """Report an outcome, if any, and return the reply of `CopyBoard.next`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlaces:
    """Opens the databases that a copying task reads and writes.

    Args:
        source: opens a reader of the source database.
        destination: opens a reader of the destination database.
        session: opens this task's session at the destination, given epoch and tag.
    """

    source: Callable[[], TableReader]
    destination: Callable[[], TableReader]
    session: Callable[[int, bytes], DestinationSession]


def copy_pieces(access: TaskAccess, topology: str, apply: str, worker: int, items: Iterable[bytes]) -> Iterator[bytes]:
    """Take pieces from the apply process and copy them until there are no more.

    Outcomes are reported to the apply process, not returned.

    Args:
        access: access to the apply process.
        topology: name of the topology.
        apply: name of the apply process.
        worker: number of this task, from 0.
        items: one item: number and incarnation of this task's session at the destination.
    """
    from headrace.databases.connectors import open_destination, open_reader
    from protos.links.apply_link import CopyLink
    from spark_apply.conversation.messages import access_from_wire

    die_with_parent()
    server, incarnation = next(map(int, item.split()) for item in items)
    link = CopyLink(access.peer, access.token, worker=worker, incarnation=uuid.uuid4().hex)
    found = link.access()
    source, destination = access_from_wire(found.source), access_from_wire(found.destination)
    name = f"headrace {topology}/{apply} copy"
    copier = PieceCopier(
        link,
        CopyPlaces(
            source=partial(open_reader, source, destination, application_name=name),
            destination=partial(open_reader, destination, source, application_name=name),
            session=lambda epoch, tag: open_destination(destination).open_session(
                topology, apply, server=server, epoch=epoch, tag=tag, incarnation=incarnation
            ),
        ),
    )
    try:
        copier.run()
    finally:
        copier.close()
        link.close()
    return iter(())


class PieceCopier:
    """Processes pieces one at a time on one thread.

    Args:
        link: to the board.
        places: opens the databases.
        retry_delay_s: pause after a database did not answer, in seconds.
    """

    def __init__(self, link: PieceLink, places: CopyPlaces, *, retry_delay_s: float = _RETRY_DELAY_S) -> None:
        self._link, self._places, self._retry_delay_s = link, places, retry_delay_s
        self._source: TableReader | None = None
        self._destination: TableReader | None = None
        self._session: DestinationSession | None = None
        self._portable_only: set[tuple[str, str]] = set()  # tables whose native form the destination refused

    def run(self) -> None:
        """Process pieces until there are no more."""
        from headrace.base.errors import HeadraceError, Retry
        from protos import apply_pb2 as pb

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
            except HeadraceError as error:
                self.close()
                is_final = error.retry is not Retry.TIMED
                outcome = pb.CopyOutcome(
                    piece=reply.piece.piece,
                    problem=error.message,
                    is_final=is_final,
                    sqlstate=str(error.context.get("sqlstate", "")),
                )
                if not is_final:
                    time.sleep(self._retry_delay_s)

    def close(self) -> None:
        """Close every connection; the next piece opens them again."""
        for opened in (self._source, self._destination, self._session):
            if opened is not None:
                opened.close()
        self._source = self._destination = self._session = None

    # ------------------------------------------------------------------ inside

    def _do(self, piece: pb.CopyPiece) -> pb.CopyOutcome:
        from headrace.base.errors import DatabaseUnavailable
        from protos import apply_pb2 as pb

        place = TablePiece(owner=piece.stored.owner, name=piece.stored.name, place=piece.place, bytes=piece.bytes)
        columns = tuple(piece.columns)
        if piece.is_digest:
            self._destination = self._destination or self._places.destination()
            with self._destination.open_piece(place) as opened:
                seen = opened.digest(columns)
        else:
            seen, rows = self._copy(piece, place, columns)
            if rows != seen.row_count:
                name = f"{piece.table.owner}.{piece.table.name}"
                raise DatabaseUnavailable(f"{rows} rows of {name} were copied, {seen.row_count} read")
        return pb.CopyOutcome(piece=piece.piece, rows=seen.row_count, digest=seen.to_bytes())

    def _copy(self, piece: pb.CopyPiece, place: TablePiece, columns: tuple[str, ...]) -> tuple[TableDigest, int]:
        """Digest and copy a piece under the snapshot.

        Returns the digest of the read rows, and the number of written rows.
        """
        from headrace.base.errors import DatabaseError, DatabaseUnavailable, DataError, DestinationRestarted

        table = (piece.table.owner, piece.table.name)
        if piece.form == NATIVE and table not in self._portable_only:
            try:
                return self._copy_as(NATIVE, piece, place, columns)
            except (DatabaseUnavailable, DestinationRestarted):
                raise
            except DatabaseError:
                # The binary form contains numbers from one database's catalog, for example of user-defined element
                # types. A copy is all or nothing; if the rows themselves are wrong, the text form fails too.
                self._portable_only.add(table)
                self.close()
        try:
            return self._copy_as(PORTABLE, piece, place, columns)
        except DataError as error:
            if (encoding := error.context.get("lacking_encoding")) and not piece.HasField("reshaped"):
                self._raise_lacking(piece, place, tuple(piece.source_columns) or columns, str(encoding))
            raise

    def _raise_lacking(self, piece: pb.CopyPiece, place: TablePiece, columns: tuple[str, ...], encoding: str) -> None:
        """Raise an error that names a value which the destination's encoding cannot hold, if one is found."""
        from headrace.base.errors import DataError

        self.close()  # an interrupted read has ended the session
        self._source = self._places.source()
        with self._source.open_piece(place, snapshot=piece.snapshot) as opened:
            found = opened.lacking(columns, encoding)
        if found:
            raise DataError(f"{found} -- change the value there, or use a destination database in UTF8")

    def _copy_as(
        self, form: str, piece: pb.CopyPiece, place: TablePiece, columns: tuple[str, ...]
    ) -> tuple[TableDigest, int]:
        self._source = self._source or self._places.source()
        self._session = self._session or self._places.session(piece.epoch, piece.tag)
        with self._source.open_piece(place, snapshot=piece.snapshot) as opened:
            if piece.HasField("reshaped"):
                made = _reshaped(opened, piece.reshaped)
                seen = made.digest(columns[: len(columns) - len(piece.added)])
                return seen, self._session.copy_rows(
                    piece.table.owner, piece.table.name, columns, made.rows(columns), form=PORTABLE
                )
            # A driver of an earlier version names no source columns: both sides use the same names.
            sources = tuple(piece.source_columns) or columns
            seen = opened.digest(sources)
            rows = opened.rows(sources, form=form, added=[None if each.is_null else each.text for each in piece.added])
            return seen, self._session.copy_rows(piece.table.owner, piece.table.name, columns, rows, form=form)
