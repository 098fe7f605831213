"""A destination's table as an apply process sees it: with its settings from the topology file, and what does not fit."""

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
    """Return a table as an apply process sees it.

    Args:
        table: as the catalog describes it.
        settings: of the apply process.
        is_hidden: values do not show what is unique in it (`DestinationTable.serialise`), whatever its key is.
    """
    table = replace(table, allow_duplicate_rows=settings.allow_duplicate_rows)
    names = settings.key_of(table.owner, table.name)
    places = {column.name: place for place, column in enumerate(table.columns)}
    if not names or any(name not in places for name in names):
        return table  # `unfit_key` reports it
    key = tuple(places[name] for name in names)
    return replace(table, key=key, is_substitute=True, serialise=is_hidden)


def are_errors(version: TableVersion, settings: TableSettings) -> bool:
    """Whether rows that do not fit their table become errors; otherwise they wait for an ALTER.

    They do if the settings say so, and where no ALTER helps: old values that the log lacks never arrive.

    Args:
        version: of the rows, as the log has it.
        settings: of the apply process.
    """
    return settings.column_mismatch == "error" or bool(_lacks_old_values(version, settings))


def _lacks_old_values(version: TableVersion, settings: TableSettings) -> tuple[str, ...]:
    """Return the columns of a table's substitute key if the log lacks old values of one of them."""
    names = settings.key_of(version.owner, version.name)
    arriving = {column.name: column.is_key for column in version.columns}
    is_of_the_log = version.version and version.old_image is OldImage.KEY
    return names if is_of_the_log and any(arriving.get(name) is False for name in names) else ()


def unfit_error(
    version: TableVersion, missing: str, settings: TableSettings, *, is_there: bool
) -> UnfitTableError | DataError:
    """Return the exception for rows that do not fit their table: it waits for an ALTER, or is an error of the rows.

    Args:
        version: of the rows.
        missing: what an operator must do.
        settings: of the apply process.
        is_there: whether the destination has the table.
    """
    message = (
        f"the destination table {version.qualified_name} does not fit the source's rows"
        if is_there
        else f"the destination has no table {version.qualified_name}"
    )
    if are_errors(version, settings):
        how = " (column_mismatch: error)" if settings.column_mismatch == "error" else ""
        return DataError(f"{message}{how}: {missing}", table=version.qualified_name)
    return UnfitTableError(message, hint=missing, table=version.qualified_name)


def unfit_key(table: DestinationTable, settings: TableSettings, comparable: frozenset[str]) -> tuple[str, str] | None:
    """Return why a table cannot have its configured substitute key: what is wrong, how to fix it.

    None: it can, or none is configured.

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
    """Return what the source must do so that its LCRs carry a table's substitute key; empty: nothing.

    Args:
        version: the source's description of the table. `version` 0 means it was made from the catalog, which does not
            show by which values the log identifies rows: supplemental logging is then checked at the source.
        settings: of the apply process.
        at_source: the table under its name at the source; None: unknown here, and the text says so.
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
