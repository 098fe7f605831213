"""`headrace explain`: collect everything about one row, and say for each destination why it is as it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, DatabaseUnavailable, HeadraceError, LogGone
from headrace.console.exit_codes import DONE, FINDING
from headrace.console.output import bytes_text
from headrace.lcr.scn import FIRST_SCN
from headrace.redo.mining.key_search import CHANGES_MAX
from headrace.rules.table_settings import NO_TABLE_SETTINGS, KeyColumns, TableSettings
from headrace.rules.transformations.transformation import columns_at_the_end
from headrace.status.overview import Overview
from headrace.tracing.causes import Evidence, Verdict, explain
from headrace.tracing.following import low_watermark_of
from topology.routing.ways import ways_to

if TYPE_CHECKING:
    from actors.hosting.runtime import RayActors
    from headrace.console.output import Output
    from headrace.databases.connectors import DatabaseAccess
    from headrace.databases.ports import ErrorTransaction, Instantiation
    from headrace.databases.ports.operator import KeyValue
    from headrace.lcr.table_name import TableName
    from headrace.redo.mining.key_search import FoundChange, SearchedRedo
    from headrace.rules.transformations.transformation import Transformation
    from topology.routing.ways import Way
    from topology.spec import CaptureSpec, TopologySpec

__all__ = ["Findings", "RowQuestion", "explain_row", "key_at_source", "parsed_key", "searched"]

REDO_WAIT_S = 5.0  # for the log writer to write what was just logged, which takes milliseconds
REDO_POLL_S = 0.2
SEARCH_TIMEOUT_S = 300.0  # one piece of redo, on a busy machine
CALL_TIMEOUT_S = 60.0  # as for other questions about tables
RESTARTS_MAX = 3  # of a search whose beginning was purged meanwhile: redo is purged every few seconds at most


def parsed_key(text: str) -> tuple[tuple[str, str], ...]:
    """Parse `value`, `value,value` or `column=value,column=value`; an unnamed column is empty in the result.

    Raises:
        ConfigError: the text is empty, or names columns for some values only.
    """
    parts = [part.partition("=") for part in text.split(",")]
    given = tuple((name.strip(), value) if equals else ("", name) for name, equals, value in parts)
    if not text or len({bool(name) for name, _ in given}) != 1:
        raise ConfigError(f"{text!r} is no key", hint="write 42, or id=42, or id=42,line=1")
    return given


@dataclass(frozen=True, slots=True, kw_only=True)
class RowQuestion:
    """The row in question.

    Args:
        table: its table's name at the source.
        key: from `parsed_key`.
        at: only this destination; empty: all.
    """

    table: TableName
    key: tuple[tuple[str, str], ...]
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Changes of the row in the redo of one capture process."""

    searched: tuple[int, int] | None
    changes: tuple[FoundChange, ...] = ()
    left_out: int = 0
    problem: str = ""


def searched(
    ask: Callable[[int], SearchedRedo],
    progress: Callable[[str], None],
    *,
    through_scn: int = 0,
    restarts_max: int = RESTARTS_MAX,
    sleep: Callable[[float], None] = time.sleep,
) -> Findings:
    """Search all redo that a capture process can read, piece by piece.

    Args:
        ask: searches the piece that begins at an SCN.
        progress: receives lines of text.
        through_scn: SCN up to which redo is awaited, for at most `REDO_WAIT_S`.
        restarts_max: how often to begin again when redo was purged meanwhile.
        sleep: pauses for so many seconds.
    """
    first, start, read, left_out, restarts = 0, int(FIRST_SCN), 0, 0, 0
    waits_left = round(REDO_WAIT_S / REDO_POLL_S)
    changes: list[FoundChange] = []
    while True:
        try:
            piece = ask(start)
        except LogGone as error:
            restarts += 1
            if restarts > restarts_max:
                return Findings(searched=None, problem=error.message)
            first, start, read, left_out = 0, int(FIRST_SCN), 0, 0
            changes.clear()
            continue
        except HeadraceError as error:
            return Findings(searched=None, problem=error.message)
        first = first or piece.first_scn
        read += piece.redo_bytes
        changes += piece.changes
        left_out += piece.left_out + max(0, len(changes) - CHANGES_MAX)
        del changes[:-CHANGES_MAX]
        progress(f"{bytes_text(read)} of redo searched, {len(changes)} changes of the row")
        # A piece that made no progress would be requested forever. If the source writes faster than this reads, the end
        # of the log is never reached, but everything relevant is below the marker.
        is_end = piece.is_done or piece.through_scn <= start or piece.through_scn >= through_scn > 0
        if is_end and piece.through_scn < through_scn and waits_left:
            waits_left -= 1
            sleep(REDO_POLL_S)
        elif is_end:
            return Findings(searched=(first, piece.through_scn), changes=tuple(changes), left_out=left_out)
        start = max(start, piece.through_scn)


def explain_row(
    output: Output,
    spec: TopologySpec,
    actors: RayActors,
    question: RowQuestion,
    *,
    overview: Overview,
    progress: Callable[[str], None],
) -> int:
    """Explain a row for each destination, and print the result.

    Args:
        output: prints it.
        spec: the topology.
        actors: its actors.
        question: the row.
        overview: the topology's overview.
        progress: receives lines of text about the search.

    Returns:
        The exit code: a finding when the row is missing or different somewhere, or could not be explained.

    Raises:
        ConfigError: no apply process there takes changes of that source, the table does not exist, or the key is
            invalid.
        DatabaseUnavailable: a source's database does not answer. If a destination's does not, redo and the components
            still show where its change is.
    """
    asked = _Asked(spec=spec, actors=actors, question=question, overview=overview, progress=progress)
    verdicts = tuple(asked.verdicts())
    if not verdicts:
        raise ConfigError(
            f"no apply process{f' at {question.at}' if question.at else ''} takes changes from elsewhere",
            hint="`headrace plan FILE` shows which changes arrive where",
        )
    output.json(
        {
            "table": str(question.table),
            "key": {part.column: part.text for part in asked.key},
            "verdicts": [asdict(v) for v in verdicts],
        }
    )
    for verdict in verdicts:
        output.result("\n".join(_lines(verdict)))
    return DONE if all(verdict.is_fine for verdict in verdicts) else FINDING


def _lines(verdict: Verdict) -> Iterator[str]:
    place = f" at {verdict.place}" if verdict.place else ""
    yield f"{verdict.site} ({verdict.apply}, from {verdict.source}): {verdict.verdict}{place}: {verdict.text}"
    for fact in verdict.evidence:
        yield f"  {fact}"
    if verdict.fix:
        yield f"  fix: {verdict.fix}"


def _destination(way: Way, table: TableName) -> TableName:
    """Return a table's name at the end of a way, whether or not it arrives."""
    return list(way.passages(table))[-1].behind


def key_at_source(way: Way, table: TableName) -> TableSettings:
    """Return the substitute key by which the destination finds a table's rows, with the source's column names.

    Empty settings: the table's own key is used.

    Args:
        way: the way to the destination.
        table: its name at the source.
    """
    destination = _destination(way, table)
    names = way.apply.tables.key_of(destination.owner, destination.name)
    found = [_followed(name, (each.origin for each in reversed(way.transformations(table)))) for name in names]
    columns = tuple(name for name in found if name is not None)
    if not names or len(columns) < len(names):
        return NO_TABLE_SETTINGS
    return TableSettings(key_columns=(KeyColumns(owner=table.owner, name=table.name, columns=columns),))


def _followed(column: str, steps: Iterable[Callable[[str], str | None]]) -> str | None:
    """Return a column's name after (or before) several clients; None: it does not exist there."""
    found: str | None = column
    for step in steps:
        found = None if found is None else step(found)
    return found


def _may_change(column: str, transformations: Iterable[Transformation]) -> bool:
    """Return whether a function on the way may change a column, so that two sites cannot be compared by it.

    Args:
        column: its name at the source.
        transformations: of the clients, in order.
    """
    name: str | None = column
    for each in transformations:
        name = None if name is None else each.after(name)
        if name is not None and each.may_change(name):
            return True
    return False


@contextmanager
def _named(site: str) -> Iterator[None]:
    """Add the site's name to the error of a database that does not answer."""
    try:
        yield
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(f"{site}: {error.message}", hint=error.hint) from error


class _Asked:
    """Questions to databases and components, each asked once."""

    def __init__(
        self,
        *,
        spec: TopologySpec,
        actors: RayActors,
        question: RowQuestion,
        overview: Overview,
        progress: Callable[[str], None],
    ) -> None:
        self._spec, self._actors, self._question, self._progress = spec, actors, question, progress
        self._statuses = {each.name: each for each in overview.components}
        self._rows: dict[tuple[str, TableName], Mapping[str, str | None] | None] = {}
        self._redo: dict[str, Findings] = {}
        self._source_scns: dict[str, int] = {}
        self._captured: dict[str, bool | None] = {}
        self.key: tuple[KeyValue, ...] = ()

    def verdicts(self) -> Iterator[Verdict]:
        for apply in self._spec.applies:
            if self._question.at not in {"", apply.site}:
                continue
            for way in ways_to(self._spec, apply)[:1]:
                yield explain(self._evidence(way))

    def _evidence(self, way: Way) -> Evidence:
        apply, source = way.apply, way.capture.source
        self._find_key(way)
        there, unknown = self._row(source, self._question.table, self.key), []
        try:
            source_row, destination_row = self._both_rows(way)
        except DatabaseUnavailable as error:
            source_row, destination_row, unknown = there, None, [f"the row at {error.message}"]
        is_read = not unknown
        is_same = is_read and source_row == destination_row
        redo = Findings(searched=None) if is_same else self._searched(way.capture)
        unknown += [f"{way.capture.name}: {redo.problem}"] if redo.problem else []
        if not is_same and not self._source_scns.get(source):
            unknown.append(f"site:{source} does not report the position of its log")
        instantiation, errors = None, None
        try:
            instantiation, errors = self._recorded(way)
        except HeadraceError as error:
            unknown.append(f"the instantiation and the error queue at {apply.site}: {error.message}")
        if not low_watermark_of(self._statuses, apply.name):
            unknown.append(f"apply:{apply.name} does not report its low watermark")
        return Evidence(
            spec=self._spec,
            way=way,
            table=self._question.table,
            source_row=source_row,
            destination_row=destination_row,
            is_captured=self._is_captured(source),
            searched=redo.searched,
            changes=redo.changes,
            left_out=redo.left_out,
            source_scn=self._source_scns.get(source, 0),
            instantiation=instantiation,
            errors=errors,
            statuses=self._statuses,
            unknown=unknown,
            is_destination_read=is_read,
        )

    def _find_key(self, way: Way) -> None:
        if not self.key:
            from headrace.databases.connectors import open_row_reader

            source = way.capture.source
            access = replace(self._access(source), tables=key_at_source(way, self._question.table))
            with _named(source), closing(open_row_reader(access)) as reader:
                self.key = reader.key_of(*self._question.table, self._question.key)

    def _both_rows(self, way: Way) -> tuple[Mapping[str, str | None] | None, Mapping[str, str | None] | None]:
        """Return the row at both sites, with the source's column names and only columns that arrive."""
        table = self._question.table
        there = self._row(way.capture.source, table, self.key)
        transformations = way.transformations(table)
        if not transformations:
            return there, self._row(way.apply.site, table, self.key)
        key = []
        for part in self.key:
            column = _followed(part.column, (each.after for each in transformations))
            if column is None:
                raise ConfigError(
                    f"column {part.column} of {table} does not arrive at {way.apply.site}",
                    hint="identify the row by columns that arrive: COLUMN=VALUE",
                )
            if _may_change(part.column, transformations):
                raise ConfigError(
                    f"a function on the way to {way.apply.site} may change {part.column} of {table}: the row cannot be"
                    " identified there",
                    hint="identify the row by columns that no function changes: COLUMN=VALUE; or say in the file which"
                    " columns a function may change: {function: ..., columns: [...]}",
                )
            key.append(replace(part, column=column))
        here = self._row(way.apply.site, _destination(way, table), tuple(key))
        arriving = (
            None
            if there is None
            else {
                name: value
                for name, value in there.items()
                if _followed(name, (each.after for each in transformations)) is not None
                and not _may_change(name, transformations)
            }
        )
        if here is None:
            return arriving, None
        if there is None:
            origins = {name: _followed(name, (each.origin for each in reversed(transformations))) for name in here}
        else:
            found = columns_at_the_end(list(there), transformations, table=table)
            origins = {name: origin for name, origin in found if isinstance(origin, str)}
        return arriving, {
            origin: here[name]
            for name, origin in origins.items()
            if origin is not None and name in here and not _may_change(origin, transformations)
        }

    def _row(self, site: str, table: TableName, key: tuple[KeyValue, ...]) -> Mapping[str, str | None] | None:
        if (site, table) not in self._rows:
            from headrace.databases.connectors import open_row_reader

            with _named(site), closing(open_row_reader(self._access(site))) as reader:
                found = reader.rows_of(*table, key) or ()
            if len(found) > 1:
                raise ConfigError(
                    f"the key matches several rows of {table} at {site}", hint="name all columns of the key"
                )
            self._rows[site, table] = found[0] if found else None
        return self._rows[site, table]

    def _searched(self, capture: CaptureSpec) -> Findings:
        if capture.name not in self._redo:
            key = [(part.column, part.text, part.binary) for part in self.key]
            name = f"capture:{capture.name}"

            def ask(start_scn: int) -> SearchedRedo:
                found: SearchedRedo = self._actors.call(
                    name,
                    "find_changes",
                    *self._question.table,
                    key,
                    start_scn,
                    timeout_s=SEARCH_TIMEOUT_S,
                )
                return found

            self._redo[capture.name] = searched(
                ask,
                lambda text: self._progress(f"{name}: {text}"),
                through_scn=self._source_scn(capture.source),
            )
        return self._redo[capture.name]

    def _source_scn(self, source: str) -> int:
        """Return a position of the source's log after every change of the row that was read; 0: it does not answer."""
        if source not in self._source_scns:
            try:
                self._source_scns[source] = int(
                    self._actors.call(f"site:{source}", "write_marker", b"explain", timeout_s=CALL_TIMEOUT_S)
                )
            except HeadraceError:
                self._source_scns[source] = 0
        return self._source_scns[source]

    def _is_captured(self, source: str) -> bool | None:
        if source not in self._captured:
            try:
                captured = self._actors.call(f"site:{source}", "captured", timeout_s=CALL_TIMEOUT_S)
            except HeadraceError:
                self._captured[source] = None
            else:
                self._captured[source] = any((t.owner, t.name) == self._question.table for t in captured)
        return self._captured[source]

    def _recorded(self, way: Way) -> tuple[Instantiation | None, Sequence[ErrorTransaction]]:
        from headrace.databases.connectors import open_destination

        apply, name = way.apply, _destination(way, self._question.table)
        with closing(open_destination(self._access(apply.site))) as destination:
            records = [
                each
                for each in destination.instantiations(self._spec.name, apply.name)
                if (each.owner, each.name) == name and each.source == apply.source
            ]
            errors = destination.errors(self._spec.name, apply.name)
        # A dropped table of the same name may have a record too; the record with the greatest SCN is the current one.
        return max(records, key=lambda each: each.scn, default=None), tuple(errors)

    def _access(self, site: str) -> DatabaseAccess:
        from actors.site.connection import access_to, running_access

        found = self._spec.site(site)
        try:
            return running_access(self._spec, found)
        except ConfigError:
            return access_to(found, str(self._actors.call(f"site:{site}", "database_dsn")))
