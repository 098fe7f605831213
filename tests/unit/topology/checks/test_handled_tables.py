"""Tables that handlers name: what the file alone shows of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.deployment.inspection import check_topology

FILE = """topology: t
sites: {{dbs1: {{database: {{kind: embedded}}}}, dbs2: {{database: {{kind: embedded}}}}}}
queues: {{q1: {{site: dbs1}}, q2: {{site: dbs2}}}}
captures:
  c1: {{site: dbs1, source: dbs1, queue: q1, rules: {{include: [{rule}]}}}}
propagations:
  p1: {{from: q1, to: q2}}
applies:
  a1: {{site: dbs2, source: dbs1, queue: q2}}
code: code
{handlers}
"""
CODE = """
def run(lcr, session): ...
def swapped(session, lcr): ...
def fix(lcr, error, session): ...
def fix_swapped(error, lcr, session): ...
def other_names(row, database): ...
"""
EXACT = "{table: shop.orders}"


def warnings(folder: Path, rule: str, handlers: str) -> list[str]:
    """Return the findings of `check --offline`, none of which is an error."""
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code" / "own.py").write_text(CODE)
    (folder / "t.yaml").write_text(FILE.format(rule=rule, handlers=handlers))
    found = check_topology(folder / "t.yaml", ask_databases=False).findings
    assert not [each for each in found if each.is_error]
    return [f"{each.path}: {each.problem}: {each.fix}" for each in found]


@pytest.mark.parametrize(
    "handlers",
    [
        "dml_handlers: [{{table: {name}, statements: [lcr.execute true]}}]",
        'error_handlers: [{{table: {name}, function: "own:fix"}}]',
        "conflict_handlers: [{{table: {name}, method: discard}}]",
        'dml_handlers: [{{table: shop.orders, function: "own:run", tables: ["{name}"]}}]',
    ],
)
def test_handler_of_a_table_that_no_rule_can_name_is_reported_offline(handlers: str, tmp_path: Path) -> None:
    (said,) = warnings(tmp_path, EXACT, handlers.format(name="shop.ordres"))
    assert "shop.ordres, a table that it does not get from dbs1" in said
    assert warnings(tmp_path, EXACT, handlers.format(name="shop.orders")) == []


@pytest.mark.parametrize(
    ("rule", "name", "is_reported"),
    [
        ("{schema: shop}", "shop.ordres", False),
        ("{schema: sales}", "shop.orders", True),
        ('{table: "shop.order*"}', "shop.orders_2", False),
        ('{table: "shop.order*"}', "shop.ordres", True),
        ("{condition: \"object_name = 'orders'\"}", "shop.orders", False),
        ("{condition: \"object_name = 'orders'\"}", "shop.ordres", True),
        ("{table: shop.orders, transform: [{rename_table: old.archive}]}", "old.archive", False),
        ("{table: shop.orders, transform: [{rename_table: old.archive}]}", "shop.orders", True),
        ("{table: shop.orders, transform: [{rename_schema: old}]}", "old.orders", False),
        ("{table: shop.orders, transform: [{rename_schema: old}]}", "old.ordres", True),
        ("{schema: shop, transform: [{rename_schema: old}]}", "old.any", False),
        ("{schema: shop, transform: [{rename_schema: old}]}", "shop.any", True),
        ('{schema: "sh*", transform: [{rename_schema: old}]}', "old.any", False),
    ],
)
def test_rules_patterns_and_renames_decide_which_tables_can_arrive(
    rule: str, name: str, is_reported: bool, tmp_path: Path
) -> None:
    handlers = f"dml_handlers: [{{table: {name}, statements: [lcr.execute true]}}]"
    said = warnings(tmp_path, rule, handlers)
    assert [each for each in said if name in each] == said
    assert len(said) == is_reported


def test_conflict_handler_of_a_table_that_a_dml_handler_writes_is_right_if_its_tables_name_it(tmp_path: Path) -> None:
    conflicts = "conflict_handlers: [{table: shop.archive, on: insert_exists, method: overwrite}]\n"
    handler = 'dml_handlers: [{table: shop.orders, function: "own:run"%s}]\n'
    (said,) = warnings(tmp_path, EXACT, conflicts + handler % "")
    assert said.endswith("if a DML handler writes LCRs into the table, list it under `tables` of that handler")
    assert warnings(tmp_path, EXACT, conflicts + handler % ", tables: [shop.archive]") == []
    (said,) = warnings(tmp_path, EXACT, conflicts)
    assert "`tables`" not in said


def test_parameters_in_another_order_are_reported(tmp_path: Path) -> None:
    dml = 'dml_handlers: [{table: shop.orders, function: "own:%s"}]'
    (said,) = warnings(tmp_path, EXACT, dml % "swapped")
    assert said == (
        "applies.a1: own:swapped takes (session, lcr), and is called with (lcr, session), by position:"
        " write def swapped(lcr, session)"
    )
    assert warnings(tmp_path, EXACT, dml % "other_names") == []
    (said,) = warnings(tmp_path, EXACT, 'error_handlers: [{table: shop.orders, function: "own:fix_swapped"}]')
    assert said.endswith("write def fix_swapped(lcr, error, session)")
