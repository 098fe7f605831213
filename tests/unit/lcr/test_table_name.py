"""A name remains one name in a statement, a comment, a command or a file, whatever its characters."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest
import yaml
from hypothesis import example, given

from headrace.commands.verification import table_name
from headrace.lcr.table_name import TableName, argument, flow_table, flow_text, literal, quoted, quoted_name, remark
from headrace.tracing.track import labelling
from spark_apply.copy.records.standing import rename_statement
from tests.support.values.hostile_names import HOSTILE, names
from topology.patterns import parse_table

# How psql and the server split a text: an identifier, a string, a comment, a dollar quote, or one character.
_TOKEN = re.compile(
    r"""(?P<name>"(?:[^"]|"")*")|(?P<escaped>[eE]'(?:[^'\\]|''|\\.)*')|(?P<text>'(?:[^']|'')*')|(?P<comment>--[^\r\n]*)|/\*|\$\w*\$|(?P<other>.)""",
    re.DOTALL,
)


def skeleton(statement: str) -> str:
    """A statement without its names, strings and comments: a name must not change anything else."""
    return "".join(
        match[0]
        if match["other"]
        else {"name": "N", "escaped": "T", "text": "T", "comment": ""}.get(match.lastgroup or "", match[0])
        for match in _TOKEN.finditer(statement)
    )


def statements_of(name: str) -> list[str]:
    table = TableName(name, name)
    return [
        f"ALTER TABLE {quoted_name(table)} RENAME COLUMN {quoted(name)} TO {quoted(name)};"
        f" {remark(f'or {name}')}\nSELECT 1;",
        f"ALTER TYPE {quoted_name(table)} ADD VALUE {literal(name)} BEFORE {literal(name)};",
        rename_statement(table, TableName("other", "other")),
        rename_statement(TableName("other", "other"), table),
        labelling(name),
    ]


@pytest.mark.seeded
@given(names())
@example("\\")
@example("\\'")
def test_name_changes_only_the_name_in_a_statement(name: str) -> None:
    assert list(map(skeleton, statements_of(name))) == list(map(skeleton, statements_of("plain")))


@pytest.mark.parametrize("name", HOSTILE)
def test_skeleton_shows_an_unquoted_name(name: str) -> None:
    """The test above can fail."""
    assert skeleton(f"ALTER TABLE {name}; SELECT '{name}'") != skeleton("ALTER TABLE plain; SELECT 'plain'")


@pytest.mark.seeded
@given(names(), names())
def test_commands_read_the_printed_table(owner: str, name: str) -> None:
    table = TableName(owner, name)
    read = shlex.split(f"headrace copy FILE {argument(table)} --yes")
    assert len(read) == 5
    assert not read[3].startswith("-")
    assert table_name(read[3]) == table


def test_plain_tables_are_printed_without_quotes() -> None:
    assert argument(TableName("hr", "employees")) == flow_table(TableName("hr", "employees")) == "hr.employees"
    assert flow_text("employees") == "employees"
    assert literal("it") == "'it'"


@pytest.mark.parametrize("name", HOSTILE)
def test_shell_reads_a_name_as_one_argument(name: str) -> None:
    line = f"printf %s {argument(TableName(name, name))}"
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=True, timeout=30)
    assert table_name(done.stdout.decode()) == TableName(name, name)


@pytest.mark.seeded
@given(names(), names())
@example("null", "yes")
def test_topology_file_reads_the_names_printed_for_it(owner: str, name: str) -> None:
    read = yaml.safe_load(
        f"triggers: [{{table: {flow_table(TableName(owner, name))}, trigger: {flow_text(name)}, fire: always}}]"
    )
    (entry,) = read["triggers"]
    assert (parse_table(entry["table"]), entry["trigger"]) == ((owner, name), name)
