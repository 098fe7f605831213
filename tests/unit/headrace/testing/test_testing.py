"""`headrace.testing`: the examples of docs/reference/testing.md, and refused input."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError, UnfitTableError
from headrace.lcr.lcr_value import LcrError
from headrace.lcr.row_lcr import RowLcr
from headrace.rules.transformations.transformation import TransformationError
from headrace.testing import Destination, Rules, Table, row_lcr, transform, values_of
from topology.problems import TopologyError

EXAMPLES = Path(__file__).parents[4] / "examples"
CUSTOMERS = Table(
    name="shop.customers",
    columns={"id": "int4", "name": "text", "email": "text", "password": "text"},
    logs_old_rows=True,
)
ORDERS = Table(name="shop.orders", columns={"id": "int4", "status": "text", "kind": "text"}, logs_old_rows=True)
EMPLOYEES = Table(
    name="hr.employees",
    columns={
        "employee_id": "int4",
        "full_name": "text",
        "department_id": "int4",
        "salary": "numeric",
        "commission": "numeric",
    },
    key=("employee_id",),
    logs_old_rows=True,
)


def shout(lcr):
    lcr.set_value("new", "name", lcr.get_value("new", "name").decoded.upper())
    return lcr


# --------------------------------------------------------------------------- LCRs


def test_lcr_has_the_values_of_a_log() -> None:
    update = row_lcr(CUSTOMERS, "UPDATE", old={"email": "a"}, new={"id": 1, "email": "b", "name": None})
    assert values_of(update, "new") == {"id": 1, "name": None, "email": "b", "password": None}
    assert values_of(update, "old") == {"id": 1, "name": None, "email": "a", "password": None}
    assert (update.commit_scn, update.tag, update.source_database_name) == (1000, None, "dbs1")
    keyed = Table(name="shop.t", columns={"id": "int4", "v": "text"})
    assert values_of(row_lcr(keyed, "UPDATE", old={"v": "a"}, new={"id": 1, "v": "b"}), "old") == {}
    assert values_of(row_lcr(keyed, "UPDATE", old={"id": 2}, new={"id": 1, "v": "b"}), "old") == {"id": 2}
    assert values_of(row_lcr(keyed, "DELETE", old={"id": 2, "v": "x"}), "old") == {"id": 2}


@pytest.mark.parametrize(
    ("make", "error", "word"),
    [
        (lambda: row_lcr(CUSTOMERS, "MERGE"), ConfigError, "MERGE"),
        (lambda: row_lcr(CUSTOMERS, "INSERT", new={"nam": 1}), ConfigError, "has no column nam"),
        (
            lambda: row_lcr(Table(name="t", columns={"id": "int4"}, logs_old_rows=True), "INSERT"),
            ConfigError,
            "no schema",
        ),
        (
            lambda: row_lcr(Table(name="a.t", columns={"id": "int"}, logs_old_rows=True), "INSERT"),
            ConfigError,
            "'int' is no built-in type",
        ),
        (
            lambda: row_lcr(Table(name="a.t", columns={"v": "int4"}, logs_old_rows=True), "INSERT"),
            ConfigError,
            "no column id",
        ),
        (lambda: row_lcr(CUSTOMERS, "INSERT", new={"name": 5}), LcrError, "does not fit column name"),
    ],
)
def test_impossible_lcr_is_refused(make, error, word) -> None:
    with pytest.raises(error, match=word):
        make()


# --------------------------------------------------------------------------- rules and transformations


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("shop.orders", ("shop", "orders")),
        ('"Odd.Schema"."a ""table"""', ("Odd.Schema", 'a "table"')),
        ("odd shop.all orders", ("odd shop", "all orders")),
    ],
)
def test_table_is_named_as_in_the_file(written: str, name: tuple[str, str]) -> None:
    assert Table(name=written, columns={"id": "int4"}, logs_old_rows=True).owner_and_name == name


def test_rules_of_a_file_mask_discard_and_pass() -> None:
    rules = Rules.from_file(EXAMPLES / "functions.yaml")
    (arrived,) = rules.evaluate(
        row_lcr(CUSTOMERS, "INSERT", new={"id": 1, "name": "Ann", "email": "Ann@a.de", "password": "secret"})
    )
    pseudonym = hashlib.sha256(b"ann@a.de").hexdigest()[:16]
    assert values_of(arrived, "new") == {"id": 1, "name": "Ann", "email": pseudonym}
    assert rules.evaluate(row_lcr(ORDERS, "INSERT", new={"id": 1, "kind": "internal"})) == []
    assert (
        rules.evaluate(
            row_lcr(Table(name="other.t", columns={"id": "int4"}, logs_old_rows=True), "INSERT", new={"id": 1})
        )
        == []
    )
    (kept,) = rules.evaluate(row_lcr(ORDERS, "UPDATE", old={"kind": "internal"}, new={"id": 1, "kind": "web"}))
    assert kept.command_type == "UPDATE"


def test_client_must_be_named_if_there_are_several_ways() -> None:
    file = EXAMPLES / "transformations.yaml"
    with pytest.raises(ConfigError, match="2 ways"):
        Rules.from_file(file)
    with pytest.raises(ConfigError, match="no client apply_dbs9"):
        Rules.from_file(file, "apply_dbs9")
    lcr = row_lcr(EMPLOYEES, "INSERT", new={"employee_id": 7, "full_name": "Ann", "salary": 10})
    (arrived,) = Rules.from_file(file, "capture_hr", "to_dbs3", "apply_dbs3").evaluate(lcr)
    assert values_of(arrived, "new") == {"employee_id": 7, "full_name": "Ann"}
    (renamed,) = Rules.from_file(file, "capture_hr", "to_dbs2", "apply_dbs2").evaluate(lcr)
    assert (renamed.object_owner, renamed.object_name, values_of(renamed, "new")["region"]) == (
        "sales",
        "staff",
        "EMEA",
    )


def test_function_is_called_as_live_and_its_argument_is_unchanged() -> None:
    lcr = row_lcr(CUSTOMERS, "INSERT", new={"id": 1, "name": "ann"})
    (after,) = transform(shout, lcr)
    assert (values_of(after, "new")["name"], values_of(lcr, "new")["name"]) == ("ANN", "ann")
    assert transform(lambda lcr: [], lcr, at_capture=True) == []
    with pytest.raises(TransformationError, match="not among its columns"):
        transform(shout, lcr, columns=["email"])
    with pytest.raises(TransformationError, match=r"test_testing\.py, line \d+, in shout"):
        transform(shout, row_lcr(CUSTOMERS, "INSERT", new={"id": 1}))
    with pytest.raises(TransformationError, match="only a capture process's function"):
        transform(lambda lcr: [lcr, lcr], lcr)


def test_file_with_a_problem_is_refused_with_it(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text("topology: t\nsites: {}\n")
    with pytest.raises(TopologyError):
        Rules.from_file(tmp_path / "t.yaml")


# --------------------------------------------------------------------------- handlers

PLAIN_ORDERS = Table(name="shop.orders", columns={"id": "int4", "status": "text"}, logs_old_rows=True)
PRICES = Table(name="shop.prices", columns={"id": "int4", "price": "numeric"}, logs_old_rows=True)
HISTORY = Table(
    name="shop.price_history",
    columns={"id": "int4", "old_price": "numeric", "new_price": "numeric", "commit_scn": "int8"},
    key=(),
    logs_old_rows=True,
)
PEOPLE = Table(name="shop.customers", columns={"id": "int4", "name": "text"}, logs_old_rows=True)
DOUBLES = Table(
    name="shop.doubles", columns={"id": "int4", "name": "text", "error": "text"}, key=(), logs_old_rows=True
)


@pytest.fixture
def destination() -> Destination:
    return Destination.from_file(EXAMPLES / "handlers.yaml", tables=[PLAIN_ORDERS, PRICES, HISTORY, PEOPLE, DOUBLES])


def test_procedure_handler_changes_and_executes_and_its_sql_is_answered(destination: Destination) -> None:
    destination.on(
        "UPDATE shop.orders SET status = 'DELETED' WHERE id = $1",
        lambda tables, key: [()] * tables.update("shop.orders", {"id": key}, {"status": "DELETED"}),
    )
    destination.apply(
        row_lcr(PLAIN_ORDERS, "INSERT", new={"id": 1, "status": "new"}),
        row_lcr(PLAIN_ORDERS, "INSERT", new={"id": 2, "status": "new"}),
    )
    destination.apply(row_lcr(PLAIN_ORDERS, "UPDATE", old={"status": "new"}, new={"id": 1, "status": "paid"}))
    destination.apply(row_lcr(PLAIN_ORDERS, "DELETE", old={"id": 2, "status": "new"}))
    assert destination.rows("shop.orders") == [{"id": 1, "status": "PAID"}, {"id": 2, "status": "DELETED"}]
    assert destination.errors == []


def test_statement_handlers_run_in_their_order(destination: Destination) -> None:
    def noted(tables, key, old, new, scn):
        tables.insert("shop.price_history", {"id": key, "old_price": old, "new_price": new, "commit_scn": scn})

    destination.on(
        "INSERT INTO shop.price_history (id, old_price, new_price, commit_scn) VALUES ($1, $2, $3, $4)", noted
    )
    destination.insert("shop.prices", {"id": 1, "price": 5})
    destination.apply(row_lcr(PRICES, "UPDATE", old={"price": 5}, new={"id": 1, "price": 6}))
    assert destination.rows("shop.prices") == [{"id": 1, "price": 6}]
    assert [(row["old_price"], row["new_price"]) for row in destination.rows("shop.price_history")] == [(5, 6)]


def test_error_handler_gets_both_rows_and_an_unhandled_error_is_raised(destination: Destination) -> None:
    destination.on(
        "INSERT INTO shop.doubles (id, name, error) VALUES ($1, $2, $3)",
        lambda tables, key, name, error: tables.insert("shop.doubles", {"id": key, "name": name, "error": error}),
    )
    destination.insert("shop.customers", {"id": 1, "name": "Ann"})
    destination.apply(row_lcr(PEOPLE, "INSERT", new={"id": 1, "name": "Bob"}))
    assert destination.rows("shop.customers") == [{"id": 1, "name": "Ann"}]
    assert [row["name"] for row in destination.rows("shop.doubles")] == ["Bob"]
    assert destination.errors == []
    destination.apply(row_lcr(PEOPLE, "DELETE", old={"id": 9, "name": "Eve"}))
    (error,) = destination.errors
    assert error


def test_sql_without_a_given_effect_is_an_explicit_error(destination: Destination) -> None:
    destination.apply(row_lcr(PLAIN_ORDERS, "DELETE", old={"id": 2, "status": "new"}))
    (error,) = destination.errors
    assert "does not know the statement" in error


COUNTS = """topology: counts
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}}
replicate: [{tables: [shop.customers], from: dbs1, to: [dbs2]}]
code: ./code
dml_handlers: [{table: shop.customers, function: "own:run"}]
"""
UPDATE = "UPDATE shop.customers SET name = $1 WHERE id = $2"


def test_statement_that_changes_rows_returns_none_and_counts_them_as_live(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").write_text(
        f"def run(lcr, session):\n    found = session.execute({UPDATE!r}, 'a', 1), session.execute_count({UPDATE!r},"
        " 'b', 1)\n    assert found == ([], 1), found\n"
    )
    (tmp_path / "counts.yaml").write_text(COUNTS)
    destination = Destination.from_file(tmp_path / "counts.yaml", tables=[PEOPLE])
    destination.on(
        UPDATE, lambda tables, name, key: [()] * tables.update("shop.customers", {"id": key}, {"name": name})
    )
    destination.insert("shop.customers", {"id": 1, "name": "x"})
    destination.apply(row_lcr(PEOPLE, "INSERT", new={"id": 2, "name": "new"}))
    assert (destination.errors, destination.rows("shop.customers")) == ([], [{"id": 1, "name": "b"}])


INSERT = "INSERT INTO shop.log (id) VALUES ($1)"


def test_answer_for_an_insert_returns_an_empty_row_for_each_row(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").write_text(
        f"def run(lcr, session):\n    assert session.execute_count({INSERT!r}, lcr.get_value('new', 'id')) == 1\n"
    )
    (tmp_path / "counts.yaml").write_text(COUNTS)
    log = Table(name="shop.log", columns={"id": "int4"})
    destination = Destination.from_file(tmp_path / "counts.yaml", tables=[PEOPLE, log])
    destination.on(INSERT, lambda tables, key: [tables.insert("shop.log", {"id": key}) or ()])
    destination.apply(row_lcr(PEOPLE, "INSERT", new={"id": 2, "name": "new"}))
    assert (destination.errors, destination.rows("shop.log")) == ([], [{"id": 2}])


REDIRECT = """topology: archive
sites: {{dbs1: {{database: {{kind: embedded}}}}, dbs2: {{database: {{kind: embedded}}}}}}
replicate: [{{tables: [shop.orders], from: dbs1, to: [dbs2]}}]
column_mismatch: {mismatch}
code: ./code
dml_handlers: [{{table: shop.orders, operations: [update], function: "own:run"}}]
"""


def with_handler(folder: Path, body: str, *tables: Table, mismatch: str = "wait") -> Destination:
    (folder / "code").mkdir()
    (folder / "code" / "own.py").write_text(f"def run(lcr, session):\n    {body}\n    lcr.execute(True)\n")
    (folder / "archive.yaml").write_text(REDIRECT.format(mismatch=mismatch))
    return Destination.from_file(folder / "archive.yaml", tables=[PLAIN_ORDERS, *tables])


@pytest.mark.parametrize("mismatch", ["wait", "error"])
def test_error_of_a_misspelt_table_says_once_that_there_is_none(mismatch: str, tmp_path: Path) -> None:
    destination = with_handler(tmp_path, "lcr.object_name = 'orders_arhcive'", mismatch=mismatch)
    destination.apply(row_lcr(PLAIN_ORDERS, "UPDATE", old={"status": "new"}, new={"id": 1, "status": "paid"}))
    (error,) = destination.errors
    assert "the destination has no table shop.orders_arhcive" in error
    assert error.count("CREATE TABLE shop.orders_arhcive (id pg_catalog.int4, status pg_catalog.text);") == 1


def test_error_of_a_statement_without_an_answer_names_how_to_give_one(tmp_path: Path) -> None:
    destination = with_handler(tmp_path, "session.execute('SELECT 1')")
    destination.apply(row_lcr(PLAIN_ORDERS, "UPDATE", old={"status": "new"}, new={"id": 1, "status": "paid"}))
    (error,) = destination.errors
    assert "destination.on(sql, answer)" in error


def test_errors_name_their_table_and_conflict_type(destination: Destination) -> None:
    destination.insert("shop.prices", {"id": 1, "price": 5})
    destination.apply(row_lcr(PRICES, "INSERT", new={"id": 1, "price": 6}))
    destination.apply(row_lcr(PRICES, "DELETE", old={"id": 2, "price": 6}))
    exists, missing = destination.errors
    assert exists == "insert_exists: duplicate key in shop.prices (id)"
    assert missing.startswith("delete_missing: DELETE of shop.prices")


def test_unchanged_large_value_is_not_in_the_log_and_stays(tmp_path: Path) -> None:
    notes = Table(name="shop.orders", columns={"id": "int4", "status": "text", "note": "text"})
    lcr = row_lcr(notes, "UPDATE", new={"id": 1, "status": "paid"}, unchanged=["note"])
    assert (lcr.is_unchanged("note"), lcr.get_value("new", "note")) == (True, None)
    (tmp_path / "t.yaml").write_text(COUNTS.partition("code:")[0].replace("shop.customers", "shop.orders"))
    destination = Destination.from_file(tmp_path / "t.yaml", tables=[notes])
    destination.insert("shop.orders", {"id": 1, "status": "new", "note": "long"})
    destination.apply(lcr)
    assert destination.errors == []
    assert destination.rows("shop.orders") == [{"id": 1, "status": "paid", "note": "long"}]


def test_unchanged_large_value_is_in_whole_old_rows() -> None:
    lcr = row_lcr(ORDERS, "UPDATE", old={"id": 1, "kind": "long"}, new={"status": "paid"}, unchanged=["kind"])
    value = lcr.get_value("new", "kind")  # an UPDATE without the new value has the old one
    assert value is not None
    assert (value.decoded, values_of(lcr, "new")) == ("long", {"id": 1, "status": "paid"})


@pytest.mark.parametrize(
    ("command", "given", "word"),
    [
        ("INSERT", {"new": {"id": 1}}, "only an UPDATE"),
        ("UPDATE", {"old": {"kind": "a"}, "new": {"id": 1, "kind": "b"}}, "has a new value"),
        ("UPDATE", {"new": {"id": 1}}, "`old` has no value of it"),
    ],
)
def test_unchanged_value_that_no_log_has_is_refused(command: str, given: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError) as raised:
        row_lcr(ORDERS, command, unchanged=["kind"], **given)
    assert word in raised.value.message_and_hint


# --------------------------------------------------------------------------- the guide


@pytest.mark.parametrize(
    ("command", "given", "old", "new"),
    [
        ("INSERT", {"new": {"id": 1}}, {}, {"id": 1, "a": None, "b": None}),
        ("UPDATE", {"new": {"id": 1, "a": 2}}, {"id": 1, "a": 2, "b": None}, {"id": 1, "a": 2, "b": None}),
        (
            "UPDATE",
            {"old": {"id": 1, "a": 1, "b": 3}, "new": {"a": 2}},
            {"id": 1, "a": 1, "b": 3},
            {"id": 1, "a": 2, "b": 3},
        ),
        ("DELETE", {"old": {"id": 1}}, {"id": 1, "a": None, "b": None}, {}),
    ],
)
def test_omitted_columns_have_the_values_that_the_guide_says(
    command: str, given: dict[str, dict[str, object]], old: dict[str, object], new: dict[str, object]
) -> None:
    lcr = row_lcr(
        Table(name="s.t", columns={"id": "int4", "a": "int4", "b": "int4"}, logs_old_rows=True),
        command,
        **given,
    )
    assert (values_of(lcr, "old"), values_of(lcr, "new")) == (old, new)


def test_examples_of_the_guide_run(monkeypatch: pytest.MonkeyPatch) -> None:
    root = EXAMPLES.parent
    monkeypatch.chdir(root)
    text = (root / "docs" / "reference" / "testing.md").read_text(encoding="utf-8")
    names: dict[str, object] = {"__name__": "guide"}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, "docs/reference/testing.md", "exec"), names)
    tests = [each for name, each in names.items() if name.startswith("test_") and callable(each)]
    assert len(tests) == 3
    for each in tests:
        each()


# --------------------------------------------------------------------------- table settings

CLIENTS = Table(
    name="shop.customers",
    columns={"customer_number": "text", "name": "text"},
    key=("customer_number",),
    logs_old_rows=True,
)
CLIENTS_THERE = Table(
    name="shop.customers",
    columns={"customer_number": "text", "name": "text", "branch": "text"},
    key=(),
    logs_old_rows=True,
)
SETTINGS = """
topology: settings
sites: {{dbs1: {{database: {{kind: embedded}}}}, dbs2: {{database: {{kind: embedded}}}}}}
replicate: [{{tables: [shop.customers], from: dbs1, to: [dbs2]}}]
key_columns: [{{table: shop.customers, columns: [customer_number]}}]
{more}
"""


def with_settings(tmp_path: Path, more: str) -> Destination:
    """Two rows with one number and different branches, and one row with another number."""
    file = tmp_path / "settings.yaml"
    file.write_text(SETTINGS.format(more=more), encoding="utf-8")
    found = Destination.from_file(file, tables=[CLIENTS_THERE])
    found.insert(
        "shop.customers",
        *({"customer_number": number, "name": "n", "branch": branch} for number, branch in ("ax", "ay", "bx")),
    )
    return found


def rename(number: str) -> RowLcr:
    return row_lcr(CLIENTS, "UPDATE", old={"name": "n"}, new={"customer_number": number, "name": "m"})


def test_substitute_key_finds_rows_of_a_table_without_a_key(tmp_path: Path) -> None:
    found = with_settings(tmp_path, "")
    found.apply(rename("b"))
    assert found.errors == []
    assert [row["name"] for row in found.rows("shop.customers")] == ["n", "n", "m"]


@pytest.mark.parametrize(("setting", "names"), [("false", ["n", "n", "n"]), ("true", ["m", "n", "n"])])
def test_one_of_several_rows_is_changed_only_where_duplicates_are_allowed(
    tmp_path: Path, setting: str, names: list[str]
) -> None:
    found = with_settings(tmp_path, f"allow_duplicate_rows: {setting}")
    found.apply(rename("a"))
    assert sorted(str(row["name"]) for row in found.rows("shop.customers")) == names
    assert (setting == "true") == (found.errors == [])


def test_rows_that_do_not_fit_wait_or_are_errors(tmp_path: Path) -> None:
    wider = Table(
        name="shop.customers",
        columns={"customer_number": "text", "age": "int4"},
        key=("customer_number",),
        logs_old_rows=True,
    )
    lcr = row_lcr(wider, "INSERT", new={"customer_number": "c", "age": 1})
    with pytest.raises(UnfitTableError, match="would wait"):
        with_settings(tmp_path, "").apply(lcr)
    found = with_settings(tmp_path, "column_mismatch: error")
    found.apply(lcr)
    assert len(found.errors) == 1
    assert "does not fit" in found.errors[0]


# --------------------------------------------------------------------------- conflict handlers

CONFLICTS = """topology: hr
sites:
  dbs1: {{database: {{kind: embedded}}}}
  dbs2: {{database: {{kind: embedded}}}}
replicate:
  - {{tables: [hr.e], from: dbs1, to: [dbs2]}}
conflict_handlers:
  - {{table: hr.e, on: update_differs, {handler}}}
"""
ORDERED = [
    ("int4", 9, 10),
    ("int8", -5, 3),
    ("numeric", Decimal("9.5"), Decimal(10)),
    ("float8", -1.0, 2.0),
    ("text", "a", "b"),
    ("date", date(1999, 1, 1), date(2026, 1, 1)),
    ("timestamptz", datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=5))), datetime(2026, 1, 1, tzinfo=UTC)),
]


@pytest.mark.parametrize("method", ["maximum", "minimum"])
@pytest.mark.parametrize(("kind", "low", "high"), ORDERED)
def test_conflict_handlers_compare_values_as_their_database_does(
    kind: str, low: object, high: object, method: str, tmp_path: Path
) -> None:
    (tmp_path / "hr.yaml").write_text(
        CONFLICTS.format(handler=f"method: {method}, resolution_column: t, columns: [t, a]")
    )
    table = Table(name="hr.e", columns={"id": "int4", "a": "text", "t": kind}, logs_old_rows=True)
    for here, arrives in ((low, high), (high, low)):
        destination = Destination.from_file(tmp_path / "hr.yaml", tables=[table])
        destination.insert("hr.e", {"id": 1, "a": "here", "t": here})
        destination.apply(row_lcr(table, "UPDATE", old={"id": 1, "a": "x"}, new={"a": "arrived", "t": arrives}))
        is_higher = arrives is high
        assert destination.errors == []
        assert destination.rows("hr.e")[0]["a"] == ("arrived" if is_higher is (method == "maximum") else "here")


@pytest.mark.parametrize(("kind", "expected"), [("int4", 15), ("numeric", Decimal("15.5"))])
def test_delta_adds_to_the_current_value(kind: str, expected: object, tmp_path: Path) -> None:
    (tmp_path / "hr.yaml").write_text(CONFLICTS.format(handler="method: delta, columns: [n]"))
    table = Table(name="hr.e", columns={"id": "int4", "n": kind}, logs_old_rows=True)
    destination = Destination.from_file(tmp_path / "hr.yaml", tables=[table])
    number: Any = expected
    destination.insert("hr.e", {"id": 1, "n": number - 10})
    destination.apply(row_lcr(table, "UPDATE", old={"id": 1, "n": 100}, new={"n": 110}))
    assert (destination.rows("hr.e"), destination.errors) == ([{"id": 1, "n": expected}], [])


@pytest.mark.parametrize(
    ("kind", "there", "old", "new", "total"),
    [
        ("numeric", Decimal("1234567890123456789012345678901.50"), 0, 1, Decimal("1234567890123456789012345678902.50")),
        ("int4", 2_000_000_000, 1_999_999_999, 2_000_000_000, 2_000_000_001),
        ("numeric", Decimal("Infinity"), 1, Decimal("-Infinity"), None),
        ("numeric", Decimal(5), 1, Decimal("NaN"), None),
        ("int4", 2_000_000_000, 0, 2_000_000_000, None),
    ],
)
def test_delta_adds_exactly_and_a_non_number_is_an_error(
    kind: str, there: object, old: object, new: object, total: object, tmp_path: Path
) -> None:
    (tmp_path / "hr.yaml").write_text(CONFLICTS.format(handler="method: delta, columns: [n]"))
    table = Table(name="hr.e", columns={"id": "int4", "n": kind}, logs_old_rows=True)
    destination = Destination.from_file(tmp_path / "hr.yaml", tables=[table])
    destination.insert("hr.e", {"id": 1, "n": there})
    destination.apply(row_lcr(table, "UPDATE", old={"id": 1, "n": old}, new={"n": new}))
    assert len(destination.errors) == (total is None)
    assert destination.rows("hr.e") == [{"id": 1, "n": there if total is None else total}]


@pytest.mark.parametrize("is_later", [False, True])
def test_latest_timestamp_compares_with_commit_times_at_the_destination(*, is_later: bool) -> None:
    rooms = Table(name="shop.rooms", columns={"id": "int4", "n": "text"}, logs_old_rows=True)
    here = datetime(2026, 1, 31, 8, 30, tzinfo=UTC)
    destination = Destination.from_file(EXAMPLES / "latest_timestamp.yaml", "apply_from_dbs1_at_dbs2", tables=[rooms])
    destination.insert("shop.rooms", {"id": 1, "n": "here"}, {"id": 2, "n": "here"}, committed=here)
    at = here + timedelta(seconds=1 if is_later else -1)
    destination.apply(row_lcr(rooms, "UPDATE", old={"id": 1, "n": "x"}, new={"n": "arrived"}, source_time=at))
    destination.apply(row_lcr(rooms, "DELETE", old={"id": 2, "n": "x"}, source_time=at))
    expected = [{"id": 1, "n": "arrived"}] if is_later else [{"id": 1, "n": "here"}, {"id": 2, "n": "here"}]
    assert (destination.rows("shop.rooms"), destination.errors) == (expected, [])


def test_source_time_is_the_given_microsecond_or_unknown() -> None:
    rooms = Table(name="hotel.rooms", columns={"id": "int4"}, logs_old_rows=True)
    for at in (datetime(2107, 3, 5, 7, 7, 9, number, tzinfo=UTC) for number in range(0, 1_000_000, 997)):
        assert row_lcr(rooms, "INSERT", new={"id": 1}, source_time=at).source_time == at
    assert row_lcr(rooms, "INSERT", new={"id": 1}).source_time is None
    with pytest.raises(ConfigError, match="no time zone"):
        row_lcr(rooms, "INSERT", new={"id": 1}, source_time=datetime(2026, 1, 31))  # noqa: DTZ001 - the refused form
