"""A destination's table as an apply process sees it: with what the topology file sets for it, and what does not fit it."""

from __future__ import annotations

from dataclasses import replace

from headrace.base.errors import COPY_THE_TABLE, WHERE_OTHERS_WRITE, DataError, UnfitTableError
from headrace.databases.ports import DestinationTable
from headrace.lcr.batch import OldImage, TableVersion
from headrace.lcr.table_name import Named, whole_rows
from headrace.rules.table_settings import TableSettings

__all__ = ["are_errors", "missing_key", "unfit_error", "unfit_key", "with_settings"]

_NAME_THERE = "under the name that it has there, if a rule renames it: "


def with_settings(table: DestinationTable, settings: TableSettings, *, is_hidden: bool) -> DestinationTable:
    """A table as an apply process sees it.

    Args:
        table: as the catalog describes it.
        settings: of the apply process.
        is_hidden: values do not show what is unique in it (see `DestinationTable.serialise`), whatever its key is.
    """
    table = replace(table, allow_duplicate_rows=settings.allow_duplicate_rows)
    names = settings.key_of(table.owner, table.name)
    places = {column.name: place for place, column in enumerate(table.columns)}
    if not names or any(name not in places for name in names):
        return table  # `unfit_key` says so
    key = tuple(places[name] for name in names)
    return replace(table, key=key, is_substitute=True, serialise=is_hidden)


def are_errors(version: TableVersion, settings: TableSettings) -> bool:
    """Whether rows that do not fit their table are errors of theirs; else they wait for an ALTER.

    Where that is set, and where no ALTER helps: what the log lacks of rows that it has does not come.

    Args:
        version: of the rows, as the log has it.
        settings: of the apply process.
    """
    return settings.column_mismatch == "error" or bool(_lacks_old_values(version, settings))


def _lacks_old_values(version: TableVersion, settings: TableSettings) -> tuple[str, ...]:
    """The columns of a table's substitute key, if the log does not have all of their old values."""
    names = settings.key_of(version.owner, version.name)
    arriving = {column.name: column.is_key for column in version.columns}
    is_of_the_log = version.version and version.old_image is OldImage.KEY
    return names if is_of_the_log and any(arriving.get(name) is False for name in names) else ()


def unfit_error(version: TableVersion, missing: str, settings: TableSettings) -> UnfitTableError | DataError:
    """What is raised for rows that do not fit their table: it waits for an ALTER, or is an error of the rows.

    Args:
        version: of the rows.
        missing: what must be done, for a person.
        settings: of the apply process.
    """
    message = f"the destination table {version.qualified_name} does not fit the source's rows"
    if are_errors(version, settings):
        how = " (column_mismatch: error)" if settings.column_mismatch == "error" else ""
        return DataError(f"{message}{how}: {missing}", table=version.qualified_name)
    return UnfitTableError(message, hint=missing, table=version.qualified_name)


def unfit_key(table: DestinationTable, settings: TableSettings, comparable: frozenset[str]) -> tuple[str, str] | None:
    """Why a table cannot have the substitute key that is set for it: what is wrong, how to fix it.

    None: it can, or none is set.

    Args:
        table: the destination's.
        settings: of the apply process.
        comparable: names of its columns whose values the destination can compare for equality.
    """
    names = [column.name for column in table.columns]
    for name in settings.key_of(table.owner, table.name):
        if name not in names:
            return (
                f"the substitute key names {name}, and the table has no such column",
                f"key_columns: name one of {', '.join(names)}",
            )
        column = table.columns[names.index(name)]
        if column.is_generated:
            return (
                f"the substitute key names {name}, which is computed by the database",
                "key_columns: name the columns that it is computed from",
            )
        if name not in comparable:
            kind = column.type_name.removeprefix("pg_catalog.")
            return (
                f"the substitute key names {name}, and values of {kind} cannot be compared",
                "key_columns: name other columns",
            )
    return None


def missing_key(version: TableVersion, settings: TableSettings, at_source: Named | None = None) -> str:
    """What the source must do so that its LCRs carry a table's substitute key; empty: they do, or none is set.

    Args:
        version: the source's description of the table. With `version` 0 it was made from the catalog, which does not
            show what the log identifies rows by: supplemental logging is checked at the source then.
        settings: of the apply process.
        at_source: the table under the name it has there; None: not known here, and the text says so.
    """
    arriving = {column.name for column in version.columns}
    lacking = [name for name in settings.key_of(version.owner, version.name) if name not in arriving]
    if lacking:
        return f"key_columns: leave out {', '.join(lacking)}: the LCRs of {version.qualified_name} do not carry it"
    if names := _lacks_old_values(version, settings):
        why = (
            f"{'' if at_source else _NAME_THERE}the log lacks old values of the substitute key ({', '.join(names)});"
            f" if changes were logged without them: {COPY_THE_TABLE}. {WHERE_OTHERS_WRITE}"
        )
        return f"at the source: {whole_rows(at_source or version, why)}"
    return ""
