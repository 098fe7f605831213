"""How commands name tables, and the reasons for a difference."""

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.commands.verification import difference_lines, discarding_conditions, handlers_of, table_name
from headrace.lcr.table_name import TableName
from topology.file.reading import read_topology


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("hr.employees", ("hr", "employees")),
        ("odd schema.the table", ("odd schema", "the table")),
        ('"Odd.Schema".t', ("Odd.Schema", "t")),
        ('"Odd Schema.x"."Tab ""le"""', ("Odd Schema.x", 'Tab "le"')),
        ('hr.size 5"', ("hr", 'size 5"')),
    ],
)
def test_table_name_has_the_form_of_the_file(text: str, name: tuple[str, str]) -> None:
    assert table_name(text) == name


@pytest.mark.parametrize("text", ["employees", "hr.", ".employees", ""])
def test_table_without_its_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no table"):
        table_name(text)


FILE = """
topology: t
state_dir: state
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
queues: {qa: {site: a}, qb: {site: b}}
captures: {c: {source: a, site: a, queue: qa, rules: {include: [{table: hr.t%s}, {table: hr.u}]}}}
propagations: {p: {from: qa, to: qb, rules: {include: [{schema: hr}]%s}}}
applies: {ap: {site: b, queue: qb, source: a}}
"""
DIFFERS = {"equal": False, "problem": "", "differences": ()}


def _conditions(folder: Path, *parts: str, table: str = "t") -> tuple[str, ...]:
    file = folder / "t.yaml"
    file.write_text(FILE % parts)
    spec = read_topology(file)
    return discarding_conditions(spec, spec.applies[0], TableName("hr", table))


def test_difference_names_the_conditions_that_discard_changes(tmp_path: Path) -> None:
    parts = ", where: department_id = 50", ", exclude: [{table: hr.t, condition: \"command_type = 'DELETE'\"}]"
    found = _conditions(tmp_path, *parts)
    assert [each.partition(" where ")[0] for each in found] == ["capture c: only", "propagation p: not"]
    assert "department_id = 50" in found[0]
    assert _conditions(tmp_path, *parts, table="u") == ()
    (line,) = difference_lines({**DIFFERS, "conditions": found})
    assert "conditions discard some of its changes (capture c: only where " in line
    assert "would again behind a new copy" in line
    assert difference_lines({**DIFFERS, "equal": True, "conditions": found}) == []


def test_subset_or_no_condition_adds_no_explanation(tmp_path: Path) -> None:
    assert _conditions(tmp_path, ", subset: department_id = 50", "") == ()
    assert difference_lines({**DIFFERS, "conditions": ()}) == []


HANDLED = """
topology: t
state_dir: state
sites: {a: {database: {kind: embedded}}, b: {database: {kind: embedded}}}
replicate: [{schemas: [hr], from: a, to: [b]}]
code: ./own
dml_handlers: [{table: hr.t, operations: [insert], function: "mine:run"}, {table: hr.t, operations: [update], statements: [lcr.execute true]}]
error_handlers: [{table: hr.u, function: "mine:mend"}]
"""


def test_difference_names_the_handlers_of_the_tables_changes(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text(
        "def run(lcr, session):\n    pass\n\n\ndef mend(lcr, error, session):\n    pass\n"
    )
    file = tmp_path / "t.yaml"
    file.write_text(HANDLED)
    (apply,) = read_topology(file).applies
    found = [handlers_of(apply, TableName("hr", name)) for name in "tuv"]
    assert found == [("mine:run", "statements"), ("mine:mend",), ()]
    (line,) = difference_lines({**DIFFERS, "handlers": found[0]})
    assert "handlers deal with its changes (mine:run, statements)" in line
    assert "what handlers have made of them is lost" in line
    assert difference_lines({**DIFFERS, "equal": True, "handlers": found[0]}) == []
    assert difference_lines({**DIFFERS, "handlers": found[2]}) == []


def test_uncompared_columns_are_listed_for_an_identical_table_too():
    assert difference_lines({**DIFFERS, "equal": True, "left_out": ["own (only at the destination)"]}) == [
        "  not compared: own (only at the destination)"
    ]


def test_difference_in_computed_columns_is_not_one_that_a_copy_fixes():
    (line,) = difference_lines({**DIFFERS, "computed": ["total"]})
    assert "the destination computes total itself, and a copy changes nothing of that" in line
    assert difference_lines({**DIFFERS, "equal": True, "computed": ["total"]}) == []


def test_difference_names_columns_padded_to_other_lengths():
    assert difference_lines({**DIFFERS, "padded": "char(n) in column c: ..."}) == ["  char(n) in column c: ..."]
    assert difference_lines({**DIFFERS, "equal": True, "padded": "char(n) in column c: ..."}) == []


def test_row_without_a_key_is_cut_to_one_line() -> None:
    row = {
        "columns": [f"c{n}" for n in range(900)],
        "values": ["x" * 1000] * 900,
        "nulls": [n == 1 for n in range(900)],
        "what": "only at the source",
    }
    (line,) = difference_lines({**DIFFERS, "differences": [row]})
    assert line.startswith(f"  c0={'x' * 60}..., c1=NULL, c2=x")
    assert line.endswith("..., ... 890 columns more (--json has them): only at the source")
    assert len(line) < 1000
    short = {"columns": ["id"], "values": ["7"], "nulls": [False], "what": "only at the source"}
    assert difference_lines({**DIFFERS, "differences": [short]}) == ["  id=7: only at the source"]
