"""`headrace errors edit`: change values of one row of an error transaction, with options or in an editor.

Before anything is stored, the destination's database parses each value, as the column's type at the source and as its
type at the destination. The apply process stores the edit, because it knows which transactions wait behind another.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headrace.base.errors import ConfigError
from headrace.console.exit_codes import DONE, FINDING
from headrace.lcr.table_name import document_remark

if TYPE_CHECKING:
    from headrace.console.output import Output
    from headrace.databases.ports.operator import RowReader
    from headrace.lcr.row_lcr import RowLcr

__all__ = ["Given", "WantedEdit", "edit_values", "wanted_values"]

_EDITOR_CHARACTERS_MAX = 10_000  # longer values are not shown in the editor, where they could not be read
_ABSENT = "(absent)"
_NULL = "NULL"
_YAML_NULL = "tag:yaml.org,2002:null"
_HOW_TO_EDIT = """\
# Change values and leave the editor; nothing is stored when nothing was changed. null is NULL, and every other value is
# a text in quotes, as the database writes it. A line that is removed changes nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedEdit:
    """Options of `errors edit`.

    Args:
        row: 0-based position of the row LCR; None: the one that failed.
        sets: "column=value", or "old.column=value" for the value before an UPDATE.
        nulls: names, in the same form, of columns that become NULL.
    """

    row: int | None = None
    sets: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A value given by the operator, with its image and column; None: NULL."""

    kind: str
    column: str
    text: str | None


def wanted_values(wanted: WantedEdit, command: str) -> tuple[Given, ...]:
    """Return the values given with options.

    Args:
        wanted: the options.
        command: the row LCR's command; a column without "old." or "new." means the new value, or for a DELETE the old
            one.

    Raises:
        ConfigError: an option cannot be parsed, or a column is given twice.
    """
    given: list[Given] = []
    for entry in wanted.sets:
        name, equals, text = entry.partition("=")
        if not equals:
            raise ConfigError(f"--set {entry}: there is no value", hint="write --set column=value, or --null column")
        given.append(_given(name, text, command))
    given += [_given(name, None, command) for name in wanted.nulls]
    names = [(each.kind, each.column) for each in given]
    twice = sorted({f"{kind}.{column}" for kind, column in names if names.count((kind, column)) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} is given twice", hint="give every column one value")
    return tuple(given)


def _given(name: str, text: str | None, command: str) -> Given:
    kind, dot, column = name.partition(".")
    if not dot or kind not in {"old", "new"}:
        kind, column = ("old" if command == "DELETE" else "new"), name
    if not column:
        raise ConfigError("a column has no name", hint="write --set column=value")
    return Given(kind, column, text)


def edit_values(
    output: Output, error: Mapping[str, Any], lcr: RowLcr, reader: RowReader, wanted: WantedEdit
) -> list[dict[str, Any]]:
    """Return the changes to a row LCR that the operator wants, checked by the destination's database; empty: none.

    Args:
        output: prints messages.
        error: the error transaction, as listed.
        lcr: the row LCR.
        reader: row reader of the destination's database.
        wanted: the options; without values, an editor is opened.

    Returns:
        One entry per value, with the field names of `spark_apply.driver.error_edits.ValueEdit`.

    Raises:
        ConfigError: a value does not fit its column, or there is no terminal for an editor.
    """
    shown = _shown(lcr, reader)
    given = wanted_values(wanted, lcr.command_type) or _from_editor(output, error, lcr, shown)
    return [
        _checked(each, lcr, reader, shown)
        for each in given
        if shown.get((each.kind, each.column), _ABSENT) != each.text
    ]


def _shown(lcr: RowLcr, reader: RowReader) -> dict[tuple[str, str], str | None]:
    """Return the LCR's values as the database shows them, by image and column."""
    shown: dict[tuple[str, str], str | None] = {}
    for kind in ("old", "new"):
        values = lcr.get_values(kind, use_old=False)
        texts = (
            reader.texts([value.column for value in values.values()], [value.raw for value in values.values()])
            if values
            else ()
        )
        shown |= {(kind, name): text for name, text in zip(values, texts, strict=True)}
    return shown


def _checked(
    given: Given, lcr: RowLcr, reader: RowReader, shown: Mapping[tuple[str, str], str | None]
) -> dict[str, Any]:
    column = next((column for column in lcr.table.columns if column.name == given.column), None)
    if column is None:
        known = ", ".join(column.name for column in lcr.table.columns)
        raise ConfigError(f"{lcr.object_owner}.{lcr.object_name} has no column {given.column}", hint=f"known: {known}")
    raw, after = reader.value_of(lcr.object_owner, lcr.object_name, column, given.text)
    before = shown.get((given.kind, given.column), _ABSENT)
    return {
        "kind": given.kind,
        "column": given.column,
        "raw": raw,
        "before": _NULL if before is None else before,
        "after": _NULL if after is None else after,
    }


# --------------------------------------------------------------------------- the editor


def _from_editor(
    output: Output,
    error: Mapping[str, Any],
    lcr: RowLcr,
    shown: Mapping[tuple[str, str], str | None],
) -> tuple[Given, ...]:
    if output.as_json or not sys.stdin.isatty():
        raise ConfigError("there is no terminal for an editor", hint="give values: --set column=value, --null column")
    document: dict[str, dict[str, str | None]] = {}
    for (kind, name), text in shown.items():
        if text is None or len(text) <= _EDITOR_CHARACTERS_MAX:
            document.setdefault(kind, {})[name] = text
    text = _document_text(error, lcr, document)
    return _read_edited(_edited_text(text), document)


def _document_text(error: Mapping[str, Any], lcr: RowLcr, document: Mapping[str, Mapping[str, str | None]]) -> str:
    """Return the document that the editor shows: comments about the row, then its values.

    Args:
        error: the error transaction, as listed.
        lcr: the row LCR. The table's owner chose its name, so line breaks in it must not end the comment: the rest
            would be read as a value.
        document: the values, by image and column.
    """
    table = f"{lcr.object_owner}.{lcr.object_name}"
    row = f"Error transaction {error['number']} of {error['apply']}, row {lcr.position}: {lcr.command_type} {table}"
    why = " ".join(str(error["message"]).split())
    values = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_style='"', width=10**6)
    return f"{document_remark(row)}\n{document_remark(why)}\n{_HOW_TO_EDIT}{values}"


def _edited_text(text: str) -> str:
    """Return the text after the operator has left the editor."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="headrace-edit-") as folder:  # private: it has row values
        file = Path(folder) / "row.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            subprocess.run(f"{editor} {file}", shell=True, check=True)  # noqa: S602 - the operator's own editor, with its options
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(
                f"the editor {editor!r} failed: nothing was changed",
                hint="set EDITOR, or give values: --set column=value",
            ) from error
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(
                "what the editor left is not in UTF-8: nothing was changed",
                hint="set the editor's encoding, or give values: --set column=value",
            ) from error


def _read_edited(text: str, document: Mapping[str, Mapping[str, str | None]]) -> tuple[Given, ...]:
    """Return the values that an edited document has changed.

    Args:
        text: the document, in YAML.
        document: the values before the edit.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        # Raw nodes: values must not be converted to dates or numbers.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"what the editor left cannot be read: {error}", hint="nothing was changed: edit again"
        ) from error
    given: dict[tuple[str, str], Given] = {}
    for node, values in root.value if isinstance(root, yaml.MappingNode) else ():
        kind = str(node.value)
        if kind not in {"old", "new"} or not isinstance(values, yaml.MappingNode):
            raise ConfigError(
                f"what the editor left has {kind!r}", hint="keep old: and new:, with column: value below them"
            )
        for column, value in values.value:
            name = str(column.value)
            if not isinstance(value, yaml.ScalarNode):
                raise ConfigError(
                    f"{kind}.{name} is not a text", hint="write the value in quotes, as the database writes it"
                )
            found = None if value.tag == _YAML_NULL and value.value.lower() in {"", "null", "~"} else value.value
            if document.get(kind, {}).get(name, _ABSENT) != found:
                given[kind, name] = Given(kind, name, found)
    return tuple(given.values())


def edited(output: Output, recorded: Mapping[str, Any]) -> int:
    """Print what was edited.

    Args:
        output: prints it.
        recorded: the recorded edit.

    Returns:
        The exit code.
    """
    output.json({"edit": dict(recorded)})
    for change in recorded["changes"]:
        output.result(f"{recorded['apply']} {recorded['number']}, row {recorded['position']}: {change}")
    output.say(f"the original is kept until it is executed: headrace errors execute FILE {recorded['number']}")
    return DONE


def not_edited(output: Output) -> int:
    """Print that nothing was changed."""
    output.json({"edit": None})
    output.result("nothing was changed")
    return FINDING


def one_row(lcrs: Sequence[RowLcr], error: Mapping[str, Any], wanted: WantedEdit) -> RowLcr:
    """Return the row to be edited.

    Args:
        lcrs: row LCRs of the error transaction that were read.
        error: the error transaction, as listed.
        wanted: the options.

    Raises:
        ConfigError: no row failed and none is named, or the row does not exist.
    """
    position = error["failed_position"] if wanted.row is None else wanted.row
    if position < 0:
        raise ConfigError(
            f"no row of error transaction {error['number']} failed: it waits behind another",
            hint="name one: --row N, as errors show counts them",
        )
    found = next((lcr for lcr in lcrs if lcr.position == position), None)
    if found is None:
        raise ConfigError(
            f"error transaction {error['number']} has no row {position}",
            hint="headrace errors show FILE N shows its rows, from 0",
        )
    return found
