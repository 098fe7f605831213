"""Conditions and subsets with a real server: it answers as the rules do, and its rows are copied, replicated and
compared as a subset.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.databases.ports import LogNeed
from headrace.databases.postgres.values.comparable import PostgresValueTypes
from headrace.lcr.batch import Command, OldImage, TableVersion
from headrace.lcr.values import NULL as NULL_LENGTH
from headrace.rules.conditions.compiled import CompiledCondition, Rows
from headrace.rules.conditions.condition import parse
from headrace.rules.conditions.logic import FALSE, NULL, TRUE
from headrace.rules.conditions.nodes import Image, columns_of, of_image
from headrace.rules.conditions.parsing import parsed
from headrace.rules.conditions.rowwise import is_true_of
from headrace.rules.conditions.spelling import spelled, spelled_tree
from headrace.rules.rule import Rule, RuleSet
from protos import apply_pb2 as pb
from tests.support.apply.apply_driver import MinedQueue, end_of_log, wait_for
from tests.support.apply.driver_on_threads import WAIT_S, run_on_threads
from tests.support.databases.postgres_site import Site
from tests.support.databases.statements import execute
from tests.support.session.seeds import scaled
from tests.support.values.condition_values import columns, conditions, raw_values, type_of
from tests.support.values.lcr_batches import column_values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

TYPES = PostgresValueTypes()
SPELLED = {"bpchar": "char(4)"}
ROWS = 12  # of each example: every comparison is true of several


# --------------------------------------------------------------------------- equal answers


@pytest.fixture
def server(fresh_database: Any, pg_source: Any) -> Any:
    with psycopg.connect(fresh_database(pg_source), autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
        defined = ", ".join(
            f'"{each.name}" {"mood" if each.name == "mood" else SPELLED.get(type_of(each.name), type_of(each.name))}'
            for each in columns()
        )
        connection.execute(f"CREATE TABLE every_type ({defined})")
        yield connection


@pytest.mark.seeded
@settings(
    max_examples=scaled(72, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_server_and_rules_agree_on_every_type(server: Any, data: Any) -> None:
    """The server gets the condition as `headrace.rules.conditions.spelling` writes it. The values come back in both
    forms of its log.
    """
    tree = of_image(data.draw(conditions(with_attributes=False)), Image.NEW)
    tree = parsed(spelled_tree(tree).replace('new."', '"').replace('old."', '"'), "where")
    used = [column for column in columns() if column.name in {value.column for value in columns_of(tree)} | {"id"}]
    rows = [[data.draw(raw_values(column) | st.none()) for column in used] for _ in range(ROWS)]
    names = ", ".join(f'"{column.name}"' for column in used)
    server.execute("TRUNCATE every_type")
    for number, row in enumerate(rows):
        row[0] = number.to_bytes(4, "big")
        formats = [psycopg.pq.Format(int(column.is_binary)) for column in used]
        places = ", ".join(f"${place + 1}" for place in range(len(used)))
        done = server.pgconn.exec_params(
            f"INSERT INTO every_type ({names}) VALUES ({places})".encode(), row, param_formats=formats
        )
        assert done.status == psycopg.pq.ExecStatus.COMMAND_OK, done.error_message
    answers = [row[0] for row in server.execute(f"SELECT {spelled_tree(tree)} FROM every_type ORDER BY id").fetchall()]
    stored = {}
    for form in (0, 1):
        found = server.pgconn.exec_params(
            f"SELECT {names} FROM every_type ORDER BY id".encode(), [], result_format=form
        )
        stored[bool(form)] = [[found.get_value(row, place) for place in range(len(used))] for row in range(ROWS)]
    values = [[stored[column.is_binary][row][place] for place, column in enumerate(used)] for row in range(ROWS)]
    assert [is_true_of(tree, used, row, TYPES) for row in values] == [answer is True for answer in answers]
    table = TableVersion(
        object_number=1, version=1, owner="public", name="every_type", columns=tuple(used), old_image=OldImage.FULL
    )
    image = column_values(
        [[NULL_LENGTH if row[place] is None else row[place] for row in values] for place in range(len(used))]
    )
    numbers = np.arange(ROWS)
    outcomes = CompiledCondition(tree, table, TYPES).outcomes(
        Rows(
            table=table,
            command=Command.INSERT,
            count=ROWS,
            old=None,
            new=image,
            source="dbs1",
            tags=(),
            tag=np.full(ROWS, -1),
            transaction_id=numbers,
            scn=numbers,
            source_time_us=numbers,
        )
    )
    assert outcomes.tolist() == [{True: TRUE, False: FALSE, None: NULL}[answer] for answer in answers]


# --------------------------------------------------------------------------- values that the log must have


def need(rule: Rule) -> LogNeed:
    return LogNeed(place="captures.c.rules.include[0].where", rule=rule)


def findings(site: Site, rule: Rule) -> list[tuple[bool, str, str]]:
    rules = (RuleSet(include=(Rule(owner="public"),)),)
    with_needs = {(f.is_error, f.problem, f.fix) for f in site.source.preflight(rules, streams=1, needs=(need(rule),))}
    return sorted(with_needs - {(f.is_error, f.problem, f.fix) for f in site.source.preflight(rules, streams=1)})


def test_check_names_the_replica_identity_that_rules_need(site: Site) -> None:
    site.run("CREATE TABLE e (id int PRIMARY KEY, department_id int, note text, short text STORAGE PLAIN)")
    full = 'ALTER TABLE "public"."e" REPLICA IDENTITY FULL;'

    def where(text: str) -> list[tuple[bool, str, str]]:
        return findings(site, Rule(owner="public", name="e", condition=parse(text, "where")))

    assert where("id = 1") == where("new.department_id = 1") == where("new.short = 'x'") == []
    assert where("old.id = 1 and lcr.command_type = 'UPDATE'") == []
    assert where("lcr.command_type = 'INSERT' and department_id = 1") == []
    for text in ("department_id = 1", "old.department_id is null"):
        ((is_error, problem, fix),) = where(text)
        assert is_error
        assert "captures.c.rules.include[0].where needs old department_id, which the log does not have" in problem
        assert fix == full
    ((is_error, problem, fix),) = where("new.note = 'x'")
    assert not is_error
    assert "needs new note, which the log does not have where it is stored out of line" in problem
    assert fix == full
    ((is_error, problem, _),) = findings(
        site, Rule(owner="public", name="e", subset=parse("department_id = 1", "subset"))
    )
    assert is_error
    assert "needs the whole old row" in problem
    site.run("CREATE UNIQUE INDEX by_department ON e (id, department_id)")
    site.run("ALTER TABLE e ALTER department_id SET NOT NULL; ALTER TABLE e REPLICA IDENTITY USING INDEX by_department")
    assert where("department_id = 1") == []
    site.run("ALTER TABLE e REPLICA IDENTITY FULL")
    assert where("department_id = 1 or note = 'x'") == []
    assert findings(site, Rule(owner="public", name="e", subset=parse("department_id = 1", "subset"))) == []


def test_check_warns_of_large_values_whose_storage_was_set_to_main(site: Site) -> None:
    """MAIN values are also stored out of line where the row would not fit a page.

    Types that are MAIN by default are numbers, whose values never reach that size.
    """
    site.run("CREATE TABLE m (id int PRIMARY KEY, note text STORAGE MAIN, price numeric, short text STORAGE PLAIN)")
    site.run("INSERT INTO m SELECT 1, string_agg(md5(i::text), ''), 1, 'x' FROM generate_series(1, 1000) i")
    with psycopg.connect(site.dsn) as connection:
        assert connection.execute("SELECT pg_column_toast_chunk_id(note) IS NOT NULL FROM m").fetchone() == (True,)
    ((is_error, problem, _),) = findings(
        site, Rule(owner="public", name="m", condition=parse("new.note = 'x'", "where"))
    )
    assert not is_error
    assert "needs new note" in problem
    assert (
        findings(site, Rule(owner="public", name="m", condition=parse("new.price = 1 and new.short = 'x'", "where")))
        == []
    )


def test_check_refuses_missing_columns_and_other_comparisons(site: Site) -> None:
    site.run("CREATE TABLE e (id int PRIMARY KEY, department_id int, note text, at timestamptz, f float4, tags text[])")
    site.run("ALTER TABLE e REPLICA IDENTITY FULL")
    refused = {
        "departement_id = 1": "did you mean department_id?",
        "department_id = '1'": "write 1 without quotes",
        "note = 5": "put the literal in quotes",
        "note < 'm'": 'COLLATE "C"',
        "at > '2026-01-31 08:30:00'": "offset from UTC",
        "at > 'yesterday'": "offset from UTC",
        "f in (0.1, 0.2)": "= and OR",
        "tags = '{}'": "IS NULL",
        "note = id": "one kind",
        "department_id like '5%'": "type text or varchar",
    }
    for text, advice in refused.items():
        ((is_error, problem, fix),) = findings(site, Rule(owner="public", name="e", condition=parse(text, "where")))
        assert is_error
        assert "table public.e" in problem
        assert advice in fix, text


def test_check_refuses_texts_with_another_order_or_equality_at_the_source(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.run("CREATE COLLATION loose (provider = builtin, locale = 'C.UTF-8')")
    site.run("CREATE TABLE e (id int PRIMARY KEY, note text COLLATE loose)")
    site.run("ALTER TABLE e REPLICA IDENTITY FULL")
    rule = Rule(owner="public", name="e", condition=parse("note > 'm' collate \"C\"", "where"))
    assert findings(site, rule) == []
    # as in a database with another encoding
    monkeypatch.setattr("headrace.databases.postgres.source.supplemental_logging._IN_ORDER_OF_UTF8", ())
    ((is_error, problem, fix),) = findings(site, rule)
    assert is_error
    assert "in the encoding of the database, UTF8" in problem
    assert fix == "compare with =, IN or LIKE"
    monkeypatch.undo()
    # this build has no such collation
    site.run("UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'")
    ((is_error, problem, _),) = findings(site, Rule(owner="public", name="e", condition=parse("note = 'm'", "where")))
    assert is_error
    assert "equal texts of note may have other bytes" in problem


def test_check_refuses_null_tests_of_composites(site: Site) -> None:
    """To the server, `ROW(NULL, NULL) IS NULL` is true and `ROW(1, NULL) IS NOT NULL` is false."""
    site.run(
        "CREATE TYPE pair AS (a int, b int); CREATE DOMAIN pairs AS pair; CREATE TABLE e (id int PRIMARY KEY, p pair, q"
        " pairs, s pair[], t text)"
    )
    site.run("ALTER TABLE e REPLICA IDENTITY FULL")
    for text, name in (("p is null", "p"), ("id = 1 or q is not null", "q")):
        ((is_error, problem, _),) = findings(site, Rule(owner="public", name="e", condition=parse(text, "where")))
        assert is_error
        assert f"{name} is of a composite type" in problem
    assert findings(site, Rule(owner="public", name="e", condition=parse("s is null and t is null", "where"))) == []


def test_conditions_on_columns_of_a_domain_use_its_base_type(site: Site) -> None:
    site.run(
        "CREATE DOMAIN price AS numeric(9, 2); CREATE TABLE e (id int PRIMARY KEY, v price); ALTER TABLE e REPLICA"
        " IDENTITY FULL"
    )
    assert findings(site, Rule(owner="public", name="e", condition=parse("v > 1.5", "where"))) == []
    ((is_error, _, fix),) = findings(site, Rule(owner="public", name="e", condition=parse("v = '1'", "where")))
    assert is_error
    assert "without quotes" in fix


def test_check_names_the_replica_identity_that_handlers_need(site: Site) -> None:
    site.run("CREATE TABLE h (id int PRIMARY KEY, price int, note text)")
    rules = (RuleSet(include=(Rule(owner="public"),)),)

    def handler(**needed: tuple[str, ...]) -> list[tuple[bool, str, str]]:
        of_handler = LogNeed(place="applies.a.dml_handlers[0]", rule=Rule(owner="public", name="h"), **needed)
        return [
            (each.is_error, each.problem, each.fix)
            for each in site.source.preflight(rules, streams=1, needs=(of_handler,))
            if of_handler.place in each.problem
        ]

    assert handler(old=("id",), new=("price", "id")) == []
    full = 'ALTER TABLE "public"."h" REPLICA IDENTITY FULL;'
    assert handler(old=("id", "price")) == [
        (True, "applies.a.dml_handlers[0] needs old price, which the log does not have", full)
    ]
    ((is_error, problem, _),) = handler(new=("note",))
    assert not is_error
    assert "a handler has no value" in problem
    (listed,) = site.source.supplemental_logging(
        rules, (LogNeed(place="x", rule=Rule(owner="public", name="h"), old=("price",)),)
    )
    assert (listed.columns, listed.lacking, listed.statement) == (("old price",), ("old price",), full)
    site.run("ALTER TABLE h REPLICA IDENTITY FULL")
    assert handler(old=("id", "price"), new=("note",)) == []


def test_plan_lists_all_old_values_for_a_handler_without_column_list(site: Site) -> None:
    site.run("CREATE TABLE every_old (id int PRIMARY KEY, price int, note text)")
    need = LogNeed(place="applies.a.conflict_handlers", rule=Rule(owner="public", name="every_old"), every_old=True)
    rules = (RuleSet(include=(Rule(owner="public"),)),)
    (listed,) = site.source.supplemental_logging(rules, (need,))
    full = 'ALTER TABLE "public"."every_old" REPLICA IDENTITY FULL;'
    assert (listed.columns, listed.lacking, listed.statement) == (
        ("old price", "old note"),
        ("old price", "old note"),
        full,
    )
    site.run("ALTER TABLE every_old REPLICA IDENTITY FULL")
    (listed,) = site.source.supplemental_logging(rules, (need,))
    assert (listed.lacking, listed.statement) == ((), "")


def test_columns_that_a_key_only_includes_have_no_old_values_in_the_log(site: Site) -> None:
    site.run("CREATE TABLE included (id int, price int, PRIMARY KEY (id) INCLUDE (price))")
    need = LogNeed(place="x", rule=Rule(owner="public", name="included"), old=("id", "price"))
    (listed,) = site.source.supplemental_logging((RuleSet(include=(Rule(owner="public"),)),), (need,))
    assert (listed.lacking, listed.statement) == (
        ("old price",),
        'ALTER TABLE "public"."included" REPLICA IDENTITY FULL;',
    )


def test_check_warns_of_large_values_that_a_function_may_lack(site: Site) -> None:
    site.run("CREATE TABLE fn (id int PRIMARY KEY, price int, note text)")
    rules = (RuleSet(include=(Rule(owner="public"),)),)

    def function(*columns: str) -> list[tuple[bool, str]]:
        of_function = LogNeed(
            place="captures.c.rules.include[0].transform",
            rule=Rule(owner="public", name="fn"),
            function="m:f",
            new=columns,
        )
        return [
            (each.is_error, each.fix)
            for each in site.source.preflight(rules, streams=1, needs=(of_function,))
            if of_function.place in each.problem
        ]

    full = 'ALTER TABLE "public"."fn" REPLICA IDENTITY FULL;'
    assert function() == function("note", "price") == [(False, full)]
    assert function("price") == []
    site.run("ALTER TABLE fn REPLICA IDENTITY FULL")
    assert function() == []


def test_plan_lists_the_values_that_the_log_must_have(site: Site) -> None:
    site.run("CREATE TABLE p (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k)")
    site.run("CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)")
    site.run("ALTER TABLE p2 REPLICA IDENTITY FULL")
    rule = Rule(owner="public", name="p", condition=parse("v = 1", "where"))
    found = site.source.supplemental_logging((RuleSet(include=(Rule(owner="public"),)),), (need(rule),))
    assert [(each.name, each.columns, each.lacking, each.statement) for each in found] == [
        ("p1", ("old v", "new v"), ("old v",), 'ALTER TABLE "public"."p1" REPLICA IDENTITY FULL;'),
        ("p2", ("old v", "new v"), (), ""),
    ]


def test_old_values_of_a_substitute_key_must_be_in_the_log(site: Site) -> None:
    site.run(
        "CREATE TABLE k (id int PRIMARY KEY, code text); CREATE TABLE f (id int PRIMARY KEY, code text); ALTER TABLE f"
        " REPLICA IDENTITY FULL"
    )
    rules = (RuleSet(include=(Rule(owner="public"),)),)

    def asked(table: str, *columns: str) -> list[tuple[tuple[str, ...], str]]:
        needs = (LogNeed(place="applies.a.key_columns", rule=Rule(owner="public", name=table), old=columns),)
        assert not site.source.preflight(rules, streams=1, needs=needs) or table == "k"
        return [(each.lacking, each.statement) for each in site.source.supplemental_logging(rules, needs)]

    full = 'ALTER TABLE "public"."k" REPLICA IDENTITY FULL;'
    assert asked("k", "code") == [(("old code",), full)]
    assert asked("k", "id") == [((), full)]
    assert asked("f", "code") == [((), "")]


# --------------------------------------------------------------------------- subsets end to end

CAPTURED = parse("department_id = 2 and note is not null", "subset")
APPLIED = parse("grade >= 3.5 or department_id in (1, 2)", "subset")


def write(dsn: str, rng: random.Random, first: int) -> None:
    """Rows are inserted and deleted, change their keys, and move in and out of the subsets."""
    with psycopg.connect(dsn) as connection:
        for number in range(first, first + 150):
            table = rng.choice(["employees", "staff"])
            key, department = rng.randrange(1, 400), rng.choice([1, 2, 3, None])
            kind = rng.random()
            if kind < 0.3:
                connection.execute(
                    f"INSERT INTO {table} VALUES (%s, %s, %s, repeat(%s, %s))",
                    (
                        1000 + number,
                        department,
                        round(rng.random() * 7, 1),
                        rng.choice(["x", None]),
                        rng.choice([1, 9000]),
                    ),
                )
            elif kind < 0.7:
                connection.execute(
                    f"UPDATE {table} SET department_id = %s WHERE id BETWEEN %s AND %s", (department, key, key + 9)
                )
            elif kind < 0.8:
                connection.execute(f"UPDATE {table} SET grade = grade + 1, note = 'n' WHERE id = %s", (key,))
            elif kind < 0.9:
                connection.execute(
                    f"UPDATE {table} SET id = %s, department_id = %s WHERE id = %s", (5000 + number, department, key)
                )
            else:
                connection.execute(f"DELETE FROM {table} WHERE id BETWEEN %s AND %s", (key, key + 2))
            if rng.random() < 0.4:
                connection.commit()
    if first > 1000:
        execute(
            dsn,
            "INSERT INTO staff SELECT i, 1, 5, 'after' FROM generate_series(9000, 9100) i; UPDATE staff SET"
            " department_id = 3, grade = 0 WHERE id < 9050",
        )


def test_subset_is_copied_replicated_and_compared(
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One subset is at the capture process and one at the apply process; the driver is replaced while users write."""
    run_on_threads(monkeypatch)
    rng = random.Random(8)
    for dsn in (source_database, destination_database):
        for table in ("employees", "staff", "jobs"):
            execute(dsn, f"CREATE TABLE {table} (id int PRIMARY KEY, department_id int, grade numeric, note text)")
            execute(dsn, f"ALTER TABLE {table} REPLICA IDENTITY FULL")
    for table in ("employees", "staff", "jobs"):
        execute(
            source_database,
            f"INSERT INTO {table} SELECT i, nullif(i % 4, 0), i % 7, CASE WHEN i % 5 > 0 THEN repeat(md5(i::text), i %"
            " 3 * 200) END FROM generate_series(1, 400) i",
        )
    taken = [Rule(owner="public", name=name) for name in ("employees", "staff", "jobs")]
    mined = RuleSet(include=(Rule(owner="public", name="employees", subset=CAPTURED), *taken[1:]))
    applied = RuleSet(include=(taken[0], Rule(owner="public", name="staff", subset=APPLIED), taken[2]))
    queue = MinedQueue(tmp_path, source_database, destination_database, topology="subset_test", mined=mined)
    rows = {"employees": f"({spelled(CAPTURED)}) IS TRUE", "staff": f"({spelled(APPLIED)}) IS TRUE", "jobs": ""}
    tables = (replace(table, rows=rows[table.source.name]) for table in queue.tables(rows))
    config = queue.config(tables, rules=(mined.without_conditions(), applied))
    driver = queue.start_driver(config)
    try:
        wait_for("the copies", lambda: {t.state for t in driver.control.status().instantiation} == {"DONE"}, WAIT_S)
        write(source_database, rng, 0)
        driver.stop(5.0)
        driver.join(60.0)
        write(source_database, rng, 1000)
        driver = queue.start_driver(config)
        execute(source_database, "TRUNCATE staff")
        write(source_database, rng, 2000)
        end = end_of_log(source_database)

        def has_everything() -> bool:
            driver.outcome()
            return driver.control.status().caught_up_scn >= end

        wait_for("everything", has_everything, WAIT_S)
        for table, condition in rows.items():
            wanted = execute(source_database, f"SELECT * FROM {table} WHERE {condition or 'true'} ORDER BY id")
            assert execute(destination_database, f"SELECT * FROM {table} ORDER BY id") == wanted
            assert len(wanted) > 20
        assert execute(destination_database, "SELECT * FROM headrace.apply_error") == []
        execute(
            destination_database,
            "INSERT INTO staff VALUES (-1, 3, 0, 'of the destination'); DELETE FROM employees WHERE id = (SELECT"
            " min(id) FROM employees)",
        )
        found = {each.name: each for each in driver.control.compare(pb.CompareRequest(rechecks=0))}
        assert {name: (each.equal, each.problem) for name, each in found.items()} == {
            "employees": (False, ""),
            "staff": (True, ""),
            "jobs": (True, ""),
        }
        assert [each.what for each in found["employees"].differences] == ["missing at the destination"]
    finally:
        driver.stop(5.0)
        driver.join(60.0)
        queue.close()
    driver.outcome()
