"""What `check` and `plan` see of real databases beside each other, before `up` would refuse it.

Longer than 500 lines: every finding is looked for in the same pair of databases, and its fix is run there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from actors.source_database import DatabaseSite
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Finding, Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.deployment.inspection import check_topology, plan_topology
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.table_settings import NO_TABLE_SETTINGS
from tests.support.matrices import values
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

FILE = """
topology: checked
state_dir: state
sites:
  a: {database: {kind: postgres, dsn: "${TEST_A_DSN}"}}
  b: {database: {kind: postgres, dsn: "${TEST_B_DSN}"}}
replicate:
  - {schemas: [public], from: a, to: [b]}
"""


class Checked:
    """Two databases and a file that names them."""

    def __init__(self, a: str, b: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.dsns = {"a": a, "b": b}
        self.file = folder / "checked.yaml"
        self.file.write_text(FILE)
        for name, dsn in self.dsns.items():
            monkeypatch.setenv(f"TEST_{name.upper()}_DSN", dsn)

    def execute(self, site: str, *statements: str) -> None:
        with psycopg.connect(self.dsns[site], autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def findings(self) -> tuple[Finding, ...]:
        found = check_topology(self.file, ask_databases=True).findings
        assert set(plan_topology(self.file, ask_databases=True).findings) == set(found)
        return found

    def at_up(self, table: str) -> list[Finding]:
        """What the sites say when the controller asks them about a table that arrives under its name."""
        spec, rules = read_topology(self.file), RuleSet(include=(Rule(owner="public", name=table),))
        source, destination = DatabaseSite(spec, "a", "").source, DatabaseSite(spec, "b", "").destination
        domains = source.domain_shapes([TableName("public", table)])
        versions = source.table_versions([rules])
        return list(
            destination.preflight_tables(
                versions, spec.applies[0].name, NO_CONFLICT_RULES, NO_TABLE_SETTINGS, {}, domains
            )
        )

    def about(self, table: str) -> list[Finding]:
        return [finding for finding in self.findings() if finding.path.endswith(f"table public.{table}")]


@pytest.fixture
def checked(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Checked:
    return Checked(fresh_database(pg_source), fresh_database(pg_destination), tmp_path, monkeypatch)


def test_one_database_under_two_names_is_said(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    checked.execute("a", "CREATE TABLE t (id int PRIMARY KEY)")
    name = psycopg.conninfo.make_conninfo(checked.dsns["a"], host="localhost")
    assert name != checked.dsns["a"]
    monkeypatch.setenv("TEST_B_DSN", name)
    assert [(f.path, f.problem) for f in checked.findings() if "same database" in f.problem] == [
        ("sites.b", "is the same database as sites.a, by another name"),
    ]
    monkeypatch.setenv("TEST_B_DSN", checked.dsns["b"])
    assert not [f for f in checked.findings() if "same database" in f.problem]


def test_rows_of_a_way_that_ended_and_comes_back_are_said_to_be_out_of_date(checked: Checked) -> None:
    checked.file.write_text(FILE.replace("from: a, to: [b]", "between: [a, b]"))
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    spec = read_topology(checked.file)
    with closing(PostgresDestination(checked.dsns["b"], site="b")) as destination:
        destination.prepare(spec.name)
        (apply,) = (each.name for each in spec.applies if each.site == "b")
        destination.record_instantiation(
            spec.name,
            apply,
            destination.raise_epoch(spec.name, apply).epoch,
            Instantiation(
                source="a",
                identity="1",
                owner="public",
                name="t",
                scn=Scn(100),
                state="DONE",
                row_count=1,
                digest="1",
            ),
        )
        destination.leave_out(spec.name, apply, kept=())
    (found,) = [finding for finding in checked.about("t") if finding.path == "sites.b table public.t"]
    assert found.is_error
    assert "out of date" in found.problem
    assert "docs/operations.md" in found.fix
    checked.execute("a", "TRUNCATE t")  # as is printed where a was restored from a backup that is too old
    assert [finding for finding in checked.about("t") if finding.is_error] == []
    assert "  at b, a has none: public.t\n" in plan_topology(checked.file, ask_databases=True).as_text()


def test_a_full_site_is_not_to_be_emptied_for_one_that_gets_its_rows(checked: Checked) -> None:
    """The rows at a are the only ones there are, and b gets them."""
    checked.file.write_text(FILE.replace("from: a, to: [b]", "between: [a, b]"))
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    checked.execute("a", "INSERT INTO t VALUES (1)")
    assert [finding for finding in checked.about("t") if finding.is_error] == []
    assert (
        "Rows that stay as they are\n  at a, b has none: public.t\n"
        in plan_topology(checked.file, ask_databases=True).as_text()
    )
    checked.execute("b", "INSERT INTO t VALUES (2)")  # rows of its own: nobody but an operator can say what they are
    both = [finding for finding in checked.about("t") if finding.is_error]
    assert {finding.path for finding in both} == {"sites.a table public.t", "sites.b table public.t"}
    for finding in both:
        assert "other sites get their rows from here" in finding.problem
        assert "--keep-existing" in finding.fix
        assert "delete no rows here" in finding.fix
        assert "empty it" not in finding.fix


THREE_SITES = FILE.replace(
    "replicate:", '  c: {database: {kind: postgres, dsn: "${TEST_C_DSN}"}}\nreplicate:'
).partition("  - {")[0]
SHAPES = {
    "hub": "hub: a, spokes: [b, c]",
    "spoke": "hub: b, spokes: [a, c]",
    "extended": "hub: b, spokes: [{site: a, spokes: [c]}]",
    "n-way": "between: [a, b, c]",
}


@pytest.fixture
def three(
    checked: Checked,
    pg_source: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    monkeypatch: pytest.MonkeyPatch,
) -> Checked:
    checked.dsns["c"] = fresh_database(pg_source)
    monkeypatch.setenv("TEST_C_DSN", checked.dsns["c"])
    for site in "abc":
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    return checked


@pytest.mark.parametrize("shape", values(SHAPES, "n-way"))
def test_of_three_sites_the_one_with_the_rows_keeps_them_and_plan_says_so(three: Checked, shape: str) -> None:
    """Whatever it is: the hub, a spoke, one between, or one of equals."""
    three.file.write_text(f"{THREE_SITES}  - {{tables: [public.t], {SHAPES[shape]}}}\n")
    three.execute("a", "INSERT INTO t VALUES (1, 1)")
    assert [finding for finding in three.about("t") if finding.is_error] == []
    plan = plan_topology(three.file, ask_databases=True)
    said = plan.as_text().partition("Rows that stay as they are\n")[2].partition("\n\n")[0].splitlines()
    neighbours = {each.source for each in read_topology(three.file).applies if each.site == "a"}
    assert sorted(said) == [f"  at a, {other} has none: public.t" for other in sorted(neighbours)]


@pytest.mark.parametrize("shape", values(SHAPES, "hub"))
def test_of_three_sites_of_which_two_have_rows_nobody_is_told_to_delete_them(three: Checked, shape: str) -> None:
    three.file.write_text(f"{THREE_SITES}  - {{tables: [public.t], {SHAPES[shape]}}}\n")
    three.execute("a", "INSERT INTO t VALUES (1, 1)")
    three.execute("b", "INSERT INTO t VALUES (2, 2)")
    found = [finding for finding in three.about("t") if finding.is_error]
    assert {finding.path for finding in found} == {"sites.a table public.t", "sites.b table public.t"}
    for finding in found:
        assert "empty it" not in finding.fix
        assert "delete no" in finding.fix


def test_a_site_that_leaves_before_another_one_has_its_rows_is_named_until_they_are_there(three: Checked) -> None:
    """At c, a's rows were still to come when a was lost: b has them, c never would, and everything is in order."""
    between = f"{THREE_SITES}  - {{tables: [public.t], between: [a, b, c]}}\n"
    three.file.write_text(between)
    spec = read_topology(three.file)
    spec.state_dir.mkdir(parents=True)
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"spec": spec_to_json(spec)}))
    three.execute("b", "INSERT INTO t VALUES (1, 1)")
    _recorded(three, "apply_from_a_at_b", "a", "DONE", 9)
    _recorded(three, "apply_from_b_at_c", "b", "DONE", 9, at="c")
    three.file.write_text(between.replace("[a, b, c]", "[b, c]"))
    (found,) = _too_early(three)
    assert (found.path, found.is_error) == ("sites.c table public.t", False)
    assert "apply process apply_from_a_at_c leaves" in found.problem
    _recorded(three, "apply_from_a_at_c", "a", "DONE", 9, at="c")
    assert not _too_early(three)


def _too_early(checked: Checked) -> list[Finding]:
    """Said of an edit: nothing was prepared in this folder but the record of it, so certificates are missing, too."""
    found, planned = (
        [each for each in ask(checked.file, ask_databases=True).findings if "that it has brought" in each.problem]
        for ask in (check_topology, plan_topology)
    )
    assert found == planned
    return found


def test_the_only_rows_there_are_are_never_to_be_deleted(checked: Checked) -> None:
    """The file says the wrong way round: what it would copy from is empty."""
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    checked.execute("b", "INSERT INTO t VALUES (1)")
    (finding,) = [finding for finding in checked.about("t") if finding.is_error]
    assert "a, from which it would be copied, has no row of it" in finding.problem
    assert "delete none" in finding.fix
    assert "empty it" not in finding.fix
    checked.execute("a", "INSERT INTO t VALUES (2)")
    (finding,) = [finding for finding in checked.about("t") if finding.is_error]
    assert "or empty it" in finding.fix


FAMILY = (
    "CREATE TABLE item (id int PRIMARY KEY, label text)",
    "CREATE TABLE item_tool (size int, PRIMARY KEY (id)) INHERITS (item)",
    "CREATE TABLE sold (item int PRIMARY KEY REFERENCES item ON DELETE CASCADE)",
    "INSERT INTO item_tool SELECT g, 't', g FROM generate_series(100, 199) g",
)
PARTITIONED = (
    "CREATE TABLE ev (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
    "CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (100)",
)


def test_rows_of_another_topology_are_not_to_be_deleted(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with closing(PostgresDestination(checked.dsns["b"], site="b")) as destination:
        destination.prepare("earlier")
        destination.record_instantiation(
            "earlier",
            "apply_1",
            destination.raise_epoch("earlier", "apply_1").epoch,
            Instantiation(
                source="c",
                identity="1",
                owner="public",
                name="t",
                scn=Scn(100),
                state="DONE",
                row_count=1,
                digest="1",
            ),
        )
    (found,) = [finding for finding in checked.about("t") if finding.path == "sites.b table public.t"]
    assert (
        found.problem
        == "the destination table is not empty: apply process apply_1 of topology earlier has rows there, from site c"
    )
    assert "DELETE" not in found.fix
    assert "take it out of the file of one of the two topologies" in found.fix


def test_rows_of_a_table_that_inherits_are_not_those_of_its_parent(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, *FAMILY)
    checked.execute("a", "INSERT INTO item VALUES (1, 'p1')")
    assert [finding for finding in checked.about("item") if "not empty" in finding.problem] == []
    assert [finding.problem for finding in checked.about("item_tool") if finding.is_error] == [
        "the destination table is not empty, and was never copied"
    ]
    with closing(PostgresDestination(checked.dsns["b"])) as destination:
        destination.prepare("t")
        epoch = destination.raise_epoch("t", "a").epoch
        with closing(destination.open_session("t", "a", server=0, epoch=epoch, tag=b"")) as session:
            (parent, child) = (session.describe("public", name) for name in ("item", "item_tool"))
            assert (session.has_rows(parent), session.has_rows(child)) == (False, True)


@pytest.mark.parametrize(
    "made",
    [
        FAMILY,
        (
            *PARTITIONED,
            "CREATE TABLE item (LIKE ev) PARTITION BY RANGE (id)",
            "CREATE TABLE item_1 PARTITION OF item DEFAULT",
        ),
    ],
    ids=["inherited, referred to", "partitioned"],
)
def test_emptying_a_table_as_check_says_removes_rows_of_no_other_one(checked: Checked, made: tuple[str, ...]) -> None:
    for site in ("a", "b"):
        checked.execute(site, *made)
        checked.execute(site, "INSERT INTO item VALUES (1, 'p1')")
    if made is FAMILY:
        checked.execute(
            "b",
            "INSERT INTO sold VALUES (1)",
            "CREATE FUNCTION wipe() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN DELETE FROM item_tool; RETURN NULL;"
            " END$$",
            "CREATE TRIGGER wipe AFTER DELETE ON item FOR EACH STATEMENT EXECUTE FUNCTION wipe()",
        )
    (finding,) = [finding for finding in checked.about("item") if "not empty" in finding.problem]
    checked.execute("b", finding.fix.partition("and no other table: ")[2])
    assert [finding for finding in checked.about("item") if "not empty" in finding.problem] == []
    with psycopg.connect(checked.dsns["b"]) as connection:
        if made is FAMILY:
            counts = connection.execute(
                "SELECT (SELECT count(*) FROM ONLY item), (SELECT count(*) FROM item_tool), (SELECT count(*) FROM sold)"
            ).fetchone()
            assert counts == (0, 100, 1)


def test_a_partition_of_a_table_that_arrives_too_is_to_be_detached_and_not_to_be_emptied(checked: Checked) -> None:
    """The source has it as a table of its own. Its rows here are the partitioned table's."""
    for site in ("a", "b"):
        checked.execute(
            site,
            *PARTITIONED,
            "CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
            "CREATE TABLE ev_3 PARTITION OF ev_2 DEFAULT",
        )
        checked.execute(site, "INSERT INTO ev VALUES (1, 'first'), (101, 'third')")
    checked.execute("a", "ALTER TABLE ev DETACH PARTITION ev_1", "ALTER TABLE ev_2 DETACH PARTITION ev_3")
    for table, parent in (("ev_1", "ev"), ("ev_3", "ev_2")):
        (found,) = [finding for finding in checked.about(table) if finding.is_error]
        assert "is a partition of public.ev here, and a table of its own at the source" in found.problem
        assert found.fix.startswith(f'ALTER TABLE "public"."{parent}" DETACH PARTITION "public"."{table}";')
        checked.execute("b", found.fix.partition(" -- ")[0])
        (found,) = [finding for finding in checked.about(table) if finding.is_error]
        assert found.problem == "the destination table is not empty, and was never copied"


@pytest.mark.parametrize("site", ["a", "b"])
def test_a_partition_that_is_a_foreign_table_is_refused_by_name(checked: Checked, site: str) -> None:
    """A copy and a comparison pass over it, and the log has nothing of it: the rest of the table would be taken for all
    of it.
    """
    for each in ("a", "b"):
        # a unique index admits no foreign partition
        checked.execute(each, *(statement.replace(" PRIMARY KEY", "") for statement in PARTITIONED))
        checked.execute(each, "ALTER TABLE ev_1 REPLICA IDENTITY FULL")
    checked.execute(
        site,
        "CREATE FOREIGN DATA WRAPPER elsewhere",
        "CREATE SERVER archive FOREIGN DATA WRAPPER elsewhere",
        "CREATE FOREIGN TABLE ev_old PARTITION OF ev FOR VALUES FROM (100) TO (200) SERVER archive",
    )
    found = [finding for finding in checked.findings() if "foreign table" in finding.problem]
    assert [(finding.path, finding.is_error) for finding in found] == [
        (f"sites.{site} table public.ev partition public.ev_old", True)
    ]
    checked.execute(site, found[0].fix)
    left = [(finding.path, finding.is_error) for finding in checked.findings() if "foreign table" in finding.problem]
    # by itself, and its rows are in no log
    assert left == ([("sites.a table public.ev_old", False)] if site == "a" else [])


def test_an_unlogged_destination_table_or_partition_is_warned_of(checked: Checked) -> None:
    for each in ("a", "b"):
        checked.execute(each, "CREATE TABLE t (id int PRIMARY KEY)", *PARTITIONED)
    checked.execute("b", "ALTER TABLE t SET UNLOGGED", "ALTER TABLE ev_1 SET UNLOGGED")
    found = {finding.path: finding for finding in checked.findings() if "UNLOGGED" in finding.problem}
    assert {path: finding.is_error for path, finding in found.items()} == {
        "sites.b table public.t": False,
        "sites.b table public.ev partition public.ev_1": False,
    }
    for finding in found.values():
        checked.execute("b", finding.fix)
    assert not [finding for finding in checked.findings() if "UNLOGGED" in finding.problem]


READER = "headrace_reader_of_checks"


def test_a_role_that_may_only_read_gets_every_grant_and_they_are_enough(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the schema headrace belongs to somebody else: what it cannot be asked hides nothing."""
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    with closing(PostgresDestination(checked.dsns["b"], site="b")) as there:
        there.prepare("checked")
    checked.execute("b", f"CREATE ROLE {READER} LOGIN PASSWORD 'secret'", f"GRANT SELECT ON t TO {READER}")
    try:
        monkeypatch.setenv(
            "TEST_B_DSN", psycopg.conninfo.make_conninfo(checked.dsns["b"], user=READER, password="secret")
        )
        done: list[str] = []
        for _ in range(5):  # a right on a schema shows which ones on its tables are missing, and so on
            errors = [finding for finding in checked.findings() if finding.is_error]
            if not errors:
                break
            assert [finding for finding in errors if not finding.fix.startswith("GRANT ")] == []
            done += [finding.fix for finding in errors]
            checked.execute("b", *(finding.fix for finding in errors))
        assert errors == []
        assert any("SCHEMA headrace" in fix for fix in done)
        assert len(done) == len(set(done))
    finally:
        for function in (
            "create(text)",
            "session_setup(text)",
            "xact_setup(pg_lsn, timestamptz)",
            "session_reset()",
            "drop(text)",
        ):
            checked.execute(
                "b", f"REVOKE EXECUTE ON FUNCTION pg_catalog.pg_replication_origin_{function} FROM {READER}"
            )
        checked.execute(
            "b",
            f"REVOKE SET ON PARAMETER session_replication_role FROM {READER}",
            f"DROP OWNED BY {READER}",
            f"DROP ROLE {READER}",
        )


SHOP = """
CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE SEQUENCE numbers;
CREATE TABLE customers (id int PRIMARY KEY, email text UNIQUE, m mood);
CREATE TABLE addresses (id int PRIMARY KEY DEFAULT nextval('numbers'), customer int REFERENCES customers, next int REFERENCES addresses);
CREATE TABLE events (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE "Odd $HOME ""name" (id int PRIMARY KEY);
"""


def test_tables_that_are_missing_are_made_by_one_command_with_all_that_belongs_to_them(
    checked: Checked, pg_destination: EmbeddedServer
) -> None:
    checked.execute("a", SHOP)
    (missing,) = [finding for finding in checked.findings() if finding.is_error]
    assert missing.problem.startswith("4 tables do not exist here: ")
    followed(checked, missing.fix, pg_destination)
    assert [finding for finding in checked.findings() if finding.is_error] == []
    constraints = (
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace ="
        " 'public'::regnamespace AND contype <> 'n' ORDER BY 1, 2"
    )
    assert rows(checked, "a", constraints) == rows(checked, "b", constraints)
    assert rows(checked, "b", "SELECT count(*) FROM pg_publication") == [(0,)]

    # Of some tables of a schema: those alone, also then in one command and with their keys.
    checked.execute("b", "DROP TABLE addresses, customers")
    (missing,) = [finding for finding in checked.findings() if finding.is_error]
    assert missing.problem == "2 tables do not exist here: public.addresses, public.customers"
    followed(checked, missing.fix, pg_destination)
    assert [finding for finding in checked.findings() if finding.is_error] == []
    assert rows(checked, "a", constraints) == rows(checked, "b", constraints)


def followed(checked: Checked, command: str, server: EmbeddedServer) -> None:
    """Run a command as it is printed."""
    for name, dsn in (("SOURCE_DSN", checked.dsns["a"]), ("DESTINATION_DSN", checked.dsns["b"])):
        command = command.replace(name, shlex.quote(dsn))
    programs = str(server.binary("pg_dump").parent)
    done = subprocess.run(
        ["sh", "-c", command],
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def rows(checked: Checked, site: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(checked.dsns[site]) as connection:
        return connection.execute(query).fetchall()  # type: ignore[call-overload, no-any-return]


def test_every_table_that_is_not_empty_is_said_at_once_and_none_that_was_begun(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("t", "u", "v")))
    checked.execute("b", "INSERT INTO t VALUES (1)", "INSERT INTO v VALUES (1)")
    assert [f.path for f in checked.findings() if "not empty" in f.problem] == [
        "sites.b table public.t",
        "sites.b table public.v",
    ]
    checked.execute("b", "TRUNCATE t, v")
    assert not [f for f in checked.findings() if "not empty" in f.problem]


def _copied(checked: Checked) -> None:
    """What `up` leaves: the tables of a are captured, and each is recorded as copied at b."""
    spec = read_topology(checked.file)
    (apply,) = spec.applies
    with (
        closing(PostgresSource(checked.dsns["a"], site="a")) as source,
        closing(PostgresDestination(checked.dsns["b"], site="b")) as there,
    ):
        source.prepare(spec.name, [RuleSet(include=(Rule(owner="public"),))])
        there.prepare(spec.name)
        epoch = there.raise_epoch(spec.name, apply.name).epoch
        for table in source.captured(spec.name):
            there.record_instantiation(
                spec.name,
                apply.name,
                epoch,
                Instantiation(
                    source="a",
                    identity=table.identity,
                    owner=table.owner,
                    name=table.name,
                    scn=Scn(1),
                    state="DONE",
                    digest="copied",
                ),
            )


def _recorded(checked: Checked, apply: str, source: str, state: str, scn: int, *, at: str = "b") -> None:
    """An apply process has a record of public.t."""
    spec = read_topology(checked.file)
    with closing(PostgresDestination(checked.dsns[at], site=at)) as there:
        there.prepare(spec.name)
        epoch = there.raise_epoch(spec.name, apply).epoch
        record = Instantiation(
            source=source, identity=f"{source}.1", owner="public", name="t", scn=Scn(scn), state=state, digest="copied"
        )
        there.record_instantiation(spec.name, apply, epoch, record)


def test_rows_that_up_refused_are_said_again_with_what_empties_their_table_and_hold_nobody_up(
    checked: Checked,
) -> None:
    """`status` names `headrace check` for what can be emptied."""
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    (apply,) = read_topology(checked.file).applies
    _recorded(checked, apply.name, "a", "FAILED", 0)
    (finding,) = [finding for finding in checked.findings() if "not empty" in finding.problem]
    assert not finding.is_error
    assert "or empty it, and no other table: BEGIN;" in finding.fix


def test_rows_that_another_apply_process_of_the_topology_brought_are_not_to_be_emptied(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _recorded(checked, "apply_from_c_at_b", "c", "DONE", 1)
    (finding,) = [finding for finding in checked.findings() if "not empty" in finding.problem]
    assert finding.problem == (
        "the destination table is not empty: it has the rows of apply process apply_from_c_at_b, from site c"
    )
    assert finding.fix.startswith("delete none: rows of a are not copied beside them")
    assert "keep them with `headrace up FILE --keep-existing`" in finding.fix


def test_table_that_was_renamed_at_the_source_gets_the_rename_as_its_one_fix_and_no_second_table(
    checked: Checked,
) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _copied(checked)
    try:
        assert not checked.findings()
        checked.execute("a", "ALTER TABLE t RENAME TO u")
        (finding,) = checked.findings()
        assert (finding.path, finding.is_error) == ("sites.b table public.u", True)
        assert finding.problem == "the table is still public.t here: the source has renamed it since it was copied"
        checked.execute("b", finding.fix)
        assert not checked.findings(), "neither is it called a table that was never copied, whose rows may be kept"
    finally:
        with closing(PostgresSource(checked.dsns["a"], site="a")) as source:
            source.remove("checked")


def test_conflicts_that_nobody_would_see_are_said_and_the_fix_is_enough(checked: Checked) -> None:
    """Both write t, and without old values an UPDATE finds the other's row by its key alone."""

    def unseen() -> list[Finding]:
        return [finding for finding in checked.findings() if "no conflict that could be seen" in finding.problem]

    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE keys (id int PRIMARY KEY)")
    assert not unseen(), "only a is written by users"
    checked.file.write_text(FILE.replace("from: a, to: [b]", "between: [a, b]"))
    found = unseen()
    assert [(f.path.rpartition(" ")[2], f.is_error) for f in found] == [("public.t", False), ("public.t", False)]
    for finding in found:
        site, _, statement = finding.fix.partition("; or ")[0].removeprefix("at ").partition(": ")
        checked.execute(site, statement)
    assert not unseen()


def test_sequences_of_a_table_that_both_sites_write_are_said_and_the_fixes_keep_them_apart(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(
            site,
            "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, v int)",
            "CREATE TABLE u (id int PRIMARY KEY)",
        )
    assert not [f for f in checked.findings() if "hand out the same value" in f.problem], "only a is written by users"
    checked.file.write_text(FILE.replace("from: a, to: [b]", "between: [a, b]"))
    checked.execute("a", "INSERT INTO t (v) SELECT generate_series(1, 10)", "TRUNCATE t")
    (finding,) = [f for f in checked.findings() if "hand out the same value" in f.problem]
    assert (finding.path, finding.is_error) == ("sites.b table public.t", False)
    assert "column id at a (next 11, step 1) and b (next 1, step 1)" in finding.problem
    for fix in finding.fix.partition("; or ")[0].split("; "):
        site, _, statement = fix.removeprefix("at ").partition(": ")
        checked.execute(site, statement)
    assert not [f for f in checked.findings() if "hand out the same value" in f.problem]


def test_the_sequence_that_a_default_names_is_the_one_that_can_collide(checked: Checked) -> None:
    """Not the one that the column owns, which nothing uses."""
    for site, start in (("a", 1), ("b", 2)):
        checked.execute(
            site,
            f"CREATE SEQUENCE own INCREMENT 2 START {start}",
            "CREATE TABLE t (id bigserial PRIMARY KEY)",
            "ALTER TABLE t ALTER id SET DEFAULT nextval('own')",
            "CREATE TABLE u (id int PRIMARY KEY)",
        )
    checked.file.write_text(FILE.replace("from: a, to: [b]", "between: [a, b]"))
    assert not [f for f in checked.findings() if "hand out the same value" in f.problem]
    checked.execute("b", "ALTER SEQUENCE own RESTART WITH 1")
    (finding,) = [f for f in checked.findings() if "hand out the same value" in f.problem]
    assert 'at b: ALTER SEQUENCE "public"."own"' in finding.fix


def test_a_table_that_may_not_be_read_is_said_with_the_others(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    role = "headrace_checked_role"
    checked.execute(
        "b",
        f"DROP ROLE IF EXISTS {role}",
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret'",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO u VALUES (1)",
        f"GRANT ALL ON u TO {role}",
    )
    monkeypatch.setenv("TEST_B_DSN", psycopg.conninfo.make_conninfo(checked.dsns["b"], user=role, password="secret"))
    assert any("lacks" in finding.problem for finding in checked.about("t"))
    assert any("not empty" in finding.problem for finding in checked.about("u"))
    checked.execute("b", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_keys_with_columns_that_only_the_destination_has_are_said(checked: Checked) -> None:
    checked.execute("a", "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE u (id int PRIMARY KEY)")
    checked.execute(
        "b",
        "CREATE TABLE w (site int, id int, PRIMARY KEY (site, id))",
        "CREATE TABLE t (id int PRIMARY KEY, v int, site int DEFAULT 1, UNIQUE (site, v), FOREIGN KEY (site, id)"
        " REFERENCES w)",
        "CREATE TABLE u (id int UNIQUE NOT NULL, own int GENERATED ALWAYS AS IDENTITY PRIMARY KEY)",
    )
    said = [
        finding.problem for finding in checked.about("t") if "columns that the source does not have" in finding.problem
    ]
    assert [problem.partition(" has ")[0] for problem in said] == [
        "the unique key (site, v)",
        'the foreign key "t_site_id_fkey"',
    ]
    assert not [finding for finding in checked.about("u") if "columns that the source" in finding.problem]


@contextmanager
def _replicated(checked: Checked) -> Iterator[None]:
    """Table t, as if it had been copied; the rows are the same at both sides."""
    source, destination = PostgresSource(checked.dsns["a"], site="a"), PostgresDestination(checked.dsns["b"], site="b")
    with closing(source), closing(destination):
        source.prepare("checked", [RuleSet(include=(Rule(owner="public", name="t"),))])
        destination.prepare("checked")
        (apply,) = read_topology(checked.file).applies
        epoch = destination.raise_epoch("checked", apply.name).epoch
        (table,) = source.captured("checked")
        destination.record_instantiation(
            "checked",
            apply.name,
            epoch,
            Instantiation(source="a", identity=table.identity, owner="public", name="t", scn=Scn(1), state="DONE"),
        )
        destination.record_row_marks("checked", apply.name, epoch, "a", source.row_marks("checked"))
        yield
        source.remove("checked")


def test_rows_that_changed_without_events_since_they_were_copied_are_said(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    with _replicated(checked):
        assert checked.about("t") == []
        checked.execute("a", "ALTER TABLE t ALTER v TYPE int USING v + 1")
        (found,) = checked.about("t")
        assert "column v was rewritten" in found.problem
        assert "headrace copy FILE public.t" in found.fix


@pytest.mark.parametrize(
    "changes",
    [
        ["RENAME VALUE 'b' TO 'c'"],
        ["RENAME VALUE 'b' TO 'c'", "RENAME VALUE 'a' TO 'b'"],
        ["RENAME VALUE 'a' TO 'x'", "RENAME VALUE 'b' TO 'a'", "RENAME VALUE 'x' TO 'b'"],
        ["RENAME VALUE 'b' TO 'c'", "ADD VALUE 'b' BEFORE 'c'", "ADD VALUE 'd'"],
        ["ADD VALUE 'c' AFTER 'b'"],
    ],
    ids=["one", "shifted", "exchanged", "renamed and added", "added"],
)
def test_labels_that_were_renamed_since_the_rows_came_are_renamed_by_what_check_says_and_others_added(
    checked: Checked, changes: list[str]
) -> None:
    for site in ("a", "b"):
        checked.execute(
            site,
            "CREATE TYPE mood AS ENUM ('a', 'b')",
            "CREATE TABLE t (id int PRIMARY KEY, m mood)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        )
    with _replicated(checked):
        checked.execute("a", *(f"ALTER TYPE mood {change}" for change in changes))
        found = checked.about("t")
        assert ["ADD VALUE" in finding.fix for finding in found] == sorted("ADD VALUE" in each.fix for each in found)
        # All of it, in the order in which it is printed.
        for finding in found:
            for line in finding.fix.splitlines():
                checked.execute("b", *re.findall(r"ALTER TYPE [^;]+", line.partition(" -- ")[0]))
        assert not [finding for finding in checked.about("t") if "ALTER TYPE" in finding.fix]
        for query in (
            "SELECT id, m::text FROM t ORDER BY id",
            "SELECT enumlabel FROM pg_enum ORDER BY enumsortorder",
        ):
            assert rows(checked, "a", query) == rows(checked, "b", query)


def test_partitions_that_only_the_source_has_are_said_and_the_fixes_make_them(checked: Checked) -> None:
    table = "CREATE TABLE t (id int, region text, PRIMARY KEY (id, region)) PARTITION BY RANGE (id)"
    first = "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)"
    checked.execute(
        "a",
        table,
        first,
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200) PARTITION BY LIST (region)",
        "CREATE TABLE t2_n PARTITION OF t2 FOR VALUES IN ('n', 'it''s')",
        "CREATE TABLE t3 PARTITION OF t DEFAULT",
        "CREATE TABLE h (id int PRIMARY KEY) PARTITION BY HASH (id)",
        *(f"CREATE TABLE h{k} PARTITION OF h FOR VALUES WITH (MODULUS 2, REMAINDER {k})" for k in range(2)),
        "CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p DEFAULT",
    )
    checked.execute(
        "b",
        table,
        first,
        "CREATE TABLE h (id int PRIMARY KEY) PARTITION BY HASH (id)",
        "CREATE TABLE h0 PARTITION OF h FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE p (id int PRIMARY KEY)",
    )
    said = [finding for finding in checked.findings() if "no partition here" in finding.problem]
    assert [finding.problem.split("'s public.")[1].split()[0] for finding in said] == ["h1", "t2", "t3", "t2_n"]
    checked.execute("b", *(finding.fix for finding in said))
    assert not [finding for finding in checked.findings() if "no partition here" in finding.problem]


def test_a_default_partition_at_the_destination_takes_the_rows_of_every_missing_one(checked: Checked) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)"
    checked.execute("a", table, "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)")
    checked.execute("b", table, "CREATE TABLE rest PARTITION OF t DEFAULT")
    assert not [finding for finding in checked.findings() if "no partition here" in finding.problem]


def test_enum_labels_that_only_the_source_has_are_said_and_the_fixes_keep_their_order(checked: Checked) -> None:
    labels = ["zero", "one", "two", "it's", "four"]
    domain = "CREATE DOMAIN moods AS mood[]"
    table = "CREATE TABLE t (id int PRIMARY KEY, m moods)"
    checked.execute("a", "CREATE TYPE mood AS ENUM ('zero', 'one', 'two', 'it''s', 'four')", domain, table)
    checked.execute("b", "CREATE TYPE mood AS ENUM ('one', 'four', 'own')", domain, table)
    (finding,) = [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    assert "(zero, two, it's)" in finding.problem
    checked.execute("b", *finding.fix.splitlines())
    assert not [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    with psycopg.connect(checked.dsns["b"]) as connection:
        found = connection.execute("SELECT unnest(enum_range(NULL::mood))::text").fetchall()
    assert [label for (label,) in found if label != "own"] == labels


@pytest.mark.parametrize(
    ("there", "here", "renamed"),
    [
        (["active", "done"], ["open", "done"], {"open": "active"}),
        (["new", "active", "done", "last"], ["open", "done"], None),
        (["a", "x", "b", "y's"], ["a", "m", "b", "n"], {"m": "x", "n": "y's"}),
        (["a", "x", "b", "c"], ["a", "m", "b"], {"m": "x"}),
    ],
    ids=["one", "doubtful", "two", "one, and a new one"],
)
def test_a_renamed_label_is_not_to_be_added(
    checked: Checked, there: list[str], here: list[str], renamed: dict[str, str] | None
) -> None:
    for site, labels in (("a", there), ("b", here)):
        checked.execute(
            site,
            f"CREATE TYPE mood AS ENUM ({', '.join(sql.Literal(label).as_string(None) for label in labels)})",
            "CREATE TABLE t (id int PRIMARY KEY, m mood)",
        )
    (finding,) = [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    if renamed is None:
        assert "ADD VALUE 'active'" not in finding.fix
        assert "ADD VALUE 'new'" not in finding.fix
        assert "new, active stand in the place of open" in finding.fix
        return
    checked.execute("b", *finding.fix.splitlines())
    assert not [finding for finding in checked.about("t") if "lacks labels" in finding.problem]
    with psycopg.connect(checked.dsns["b"]) as connection:
        assert [label for (label,) in connection.execute("SELECT unnest(enum_range(NULL::mood))::text")] == there


def test_a_partition_whose_name_a_table_has_is_to_be_attached(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(
            site, "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE t1 (id int PRIMARY KEY)"
        )
    checked.execute("a", "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (100)")
    (finding,) = [finding for finding in checked.findings() if "no partition here" in finding.problem]
    checked.execute("b", finding.fix)
    assert not [finding for finding in checked.findings() if "no partition here" in finding.problem]


def test_enum_labels_in_another_order_are_said(checked: Checked) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, m mood)"
    checked.execute("a", "CREATE TYPE mood AS ENUM ('low', 'middle', 'high')", table)
    checked.execute("b", "CREATE TYPE mood AS ENUM ('high', 'own', 'low', 'middle')", table)
    (finding,) = [finding for finding in checked.about("t") if "order" in finding.problem]
    assert not finding.is_error
    assert "another order than at the source (low, middle, high)" in finding.problem


def test_domain_that_is_narrower_here_than_at_the_source_is_an_error_and_the_fix_is_enough(checked: Checked) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, v price, w name_of)"
    checked.execute("a", "CREATE DOMAIN price AS numeric(9,4); CREATE DOMAIN name_of AS varchar(5)", table)
    checked.execute("b", "CREATE DOMAIN price AS numeric(5,2); CREATE DOMAIN name_of AS varchar(9)", table)
    (finding,) = [finding for finding in checked.about("t") if "domain" in finding.problem]
    assert finding.is_error
    assert (
        "v is of the domain public.price over numeric(5,2), and at the source of public.price over numeric(9,4)"
        in finding.problem
    )
    checked.execute("b", *finding.fix.splitlines())
    assert not [finding for finding in checked.about("t") if finding.is_error]


def _soak(*case: str) -> Any:
    """A case of a matrix that `make soak` runs."""
    return pytest.param(*case, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("types", "here", "column", "problem"),
    [
        (
            "CREATE DOMAIN p AS numeric(9,4)",
            "CREATE DOMAIN p AS numeric(5,2)",
            "p[]",
            "where v[] is numeric(5,2), and at the source numeric(9,4)",
        ),
        _soak(
            "CREATE DOMAIN p AS timestamp",
            "CREATE DOMAIN p AS timestamp(0)",
            "p[]",
            "where v[] is timestamp(0), and at the source timestamp",
        ),
        (
            "CREATE TYPE p AS (a int, b varchar)",
            "CREATE TYPE p AS (a int, b varchar(3))",
            "p",
            "where v.b is varchar(3), and at the source varchar",
        ),
        _soak(
            "CREATE TYPE p AS (a numeric[])",
            "CREATE TYPE p AS (a numeric(5,2)[])",
            "p[]",
            "where v[].a is numeric(5,2)[], and at the source numeric[]",
        ),
        _soak(
            "CREATE TYPE p AS (a int, b timestamp)",
            "CREATE TYPE p AS (a int, b date)",
            "p",
            "where v.b is date, and at the source timestamp",
        ),
        _soak(
            "CREATE DOMAIN p AS float8",
            "CREATE DOMAIN p AS float4",
            "p[]",
            "where v[] is float4, and at the source float8",
        ),
        (
            "CREATE TYPE p AS (a int, b int)",
            "CREATE TYPE p AS (b int, a int)",
            "p",
            "fields are in another order than at the source (.a, .b)",
        ),
    ],
)
def test_types_whose_parts_are_narrower_or_in_another_order_here_are_an_error(
    checked: Checked, types: str, here: str, column: str, problem: str
) -> None:
    checked.execute("a", types, f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    checked.execute("b", here, f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    (finding,) = [finding for finding in checked.about("t") if finding.is_error]
    assert problem in finding.problem
    assert checked.at_up("t") == [finding]
    checked.execute(
        "b",
        f"ALTER {'DOMAIN' if 'DOMAIN' in here else 'TYPE'} p RENAME TO before",
        types,
        f"ALTER TABLE public.t ALTER COLUMN v TYPE {column} USING v::text::{column}",
    )
    assert 'ALTER TABLE "public"."t" ALTER COLUMN "v" TYPE ... USING "v"::text::...' in finding.fix
    assert not [finding for finding in checked.about("t") if finding.is_error]


@pytest.mark.parametrize(
    ("there", "here", "problem", "fix"),
    [
        (
            "a int, b int, c text",
            "a int",
            "lacks .b, .c",
            'ALTER TYPE "public"."p" ADD ATTRIBUTE "b" int4, ADD ATTRIBUTE "c" text;',
        ),
        ("a int", "a int, b int", "has besides .b", 'ALTER TYPE "public"."p" DROP ATTRIBUTE "b";'),
        (
            "a int, c text",
            "a int, b int",
            "lacks .c and has besides .b",
            'ALTER TYPE "public"."p" DROP ATTRIBUTE "b", ADD ATTRIBUTE "c" text;',
        ),
        ("a int, b int, c int", "a int, c int", "lacks .b", "make the type anew"),
    ],
)
def test_composite_type_with_other_fields_here_is_an_error_whose_fix_ends_it(
    checked: Checked, there: str, here: str, problem: str, fix: str
) -> None:
    checked.execute("a", f"CREATE TYPE p AS ({there})", "CREATE TABLE t (id int PRIMARY KEY, v p)")
    checked.execute("b", f"CREATE TYPE p AS ({here})", "CREATE TABLE t (id int PRIMARY KEY, v p)")
    (finding,) = [finding for finding in checked.about("t") if finding.is_error]
    assert problem in finding.problem
    assert fix in finding.fix
    assert checked.at_up("t") == [finding]
    if fix.startswith("ALTER"):
        checked.execute("b", finding.fix)
        assert not [finding for finding in checked.about("t") if finding.is_error]


@pytest.mark.parametrize("columns", ["v p", "v p[]", "v p, w p[]", "v o"])
def test_a_field_that_looks_renamed_is_to_be_renamed_and_keeps_its_values(checked: Checked, columns: str) -> None:
    values = {
        "v p": "ROW('Elm', '1')::p",
        "v p[]": "ARRAY[ROW('Elm', '1')::p]",
        "v p, w p[]": "ROW('Elm', '1')::p, ARRAY[ROW('Elm', '1')::p]",
        "v o": "ROW(ROW('Elm', '1')::p)::o",
    }
    for site in ("a", "b"):
        checked.execute(
            site,
            "CREATE TYPE p AS (street text, zip text)",
            "CREATE TYPE o AS (inner_one p)",
            f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
            f"INSERT INTO t SELECT 1, {values[columns]}",
        )
    checked.execute("a", "ALTER TYPE p RENAME ATTRIBUTE zip TO plz")
    (finding,) = [finding for finding in checked.about("t") if "is of type" in finding.problem]
    assert finding.fix.startswith('ALTER TYPE "public"."p" RENAME ATTRIBUTE "zip" TO "plz"; -- unless')
    checked.execute("b", finding.fix)
    assert not [finding for finding in checked.about("t") if "is of type" in finding.problem]
    shown = []
    for dsn in checked.dsns.values():
        with psycopg.connect(dsn) as connection:
            shown.append(connection.execute("SELECT array_agg(to_jsonb(t)) FROM t").fetchall())
    assert shown[0] == shown[1]
    assert "plz" in str(shown[0])


@pytest.mark.parametrize(
    ("there", "here", "problem"),
    [
        ("", "subtype = float8", "where v[]<> is float8, and at the source numeric"),
        (
            "CREATE DOMAIN d AS numeric(5,2);",
            "subtype = d, subtype_opclass = numeric_ops",
            "where v[]<> is numeric(5,2), and at the source numeric",
        ),
    ],
)
def test_a_range_over_a_type_that_would_change_the_values_is_an_error(
    checked: Checked, there: str, here: str, problem: str
) -> None:
    checked.execute("a", "CREATE TYPE p AS RANGE (subtype = numeric)", "CREATE TABLE t (id int PRIMARY KEY, v p[])")
    checked.execute("b", f"{there} CREATE TYPE p AS RANGE ({here})", "CREATE TABLE t (id int PRIMARY KEY, v p[])")
    (finding,) = checked.at_up("t")
    assert finding.is_error
    assert problem in finding.problem


@pytest.mark.parametrize(
    ("types", "here", "column"),
    [
        ("CREATE DOMAIN p AS numeric(5,2)", "CREATE DOMAIN p AS numeric(9,2)", "p[]"),
        ("CREATE DOMAIN p AS varchar(5)[]", "CREATE DOMAIN p AS varchar(9)[]", "p"),
        _soak(
            "CREATE DOMAIN o AS timestamp; CREATE DOMAIN p AS o",
            "CREATE DOMAIN o AS timestamp; CREATE DOMAIN p AS timestamp(6)",
            "p",
        ),
        (
            "CREATE TYPE p AS (a varchar(3), gone int, b int); ALTER TYPE p DROP ATTRIBUTE gone",
            "CREATE TYPE p AS (a varchar, b int)",
            "p",
        ),
        (
            "CREATE TYPE p AS (a int2, b int4, c varchar(5), d numeric(5,2)[])",
            "CREATE TYPE p AS (a int4, b int8, c text, d numeric(7,2)[])",
            "p",
        ),
        _soak(
            "CREATE DOMAIN d AS numeric(5,2); CREATE TYPE p AS RANGE (subtype = d, subtype_opclass = numeric_ops)",
            "CREATE TYPE p AS RANGE (subtype = numeric)",
            "p",
        ),
        _soak(
            "CREATE TYPE m AS ENUM ('x'); CREATE DOMAIN p AS m",
            "CREATE TYPE m AS ENUM ('x'); CREATE DOMAIN p AS m",
            "p",
        ),
    ],
)
def test_types_whose_parts_take_every_value_are_no_error(checked: Checked, types: str, here: str, column: str) -> None:
    for site, statements in (("a", types), ("b", here)):
        checked.execute(site, *statements.split("; "), f"CREATE TABLE t (id int PRIMARY KEY, v {column})")
    assert not [finding for finding in checked.about("t") if finding.is_error]


def test_keys_of_the_destination_on_other_columns_than_the_source_are_said(checked: Checked) -> None:
    columns = "id int NOT NULL, email text NOT NULL, v int"
    checked.execute(
        "a", f"CREATE TABLE t ({columns}, PRIMARY KEY (id))", f"CREATE TABLE u ({columns}, PRIMARY KEY (id))"
    )
    checked.execute(
        "b",
        f"CREATE TABLE t ({columns}, PRIMARY KEY (email))",
        f"CREATE TABLE u ({columns}, PRIMARY KEY (id), UNIQUE (id, v))",
    )
    assert not [finding for finding in checked.about("u") if "unique key" in finding.problem]
    said = [finding for finding in checked.about("t") if "unique key" in finding.problem]
    assert [finding.problem.partition(":")[0] for finding in said] == [
        "the unique key (email) is none at the source",
        "rows are found by the source's identity (id), which is no unique key here",
    ]
    checked.execute("b", said[1].fix)
    checked.execute("a", said[0].fix.partition("equal in it: ")[2])
    assert not [finding for finding in checked.about("t") if "unique key" in finding.problem]


def test_conflict_handlers_are_checked_against_the_tables_and_the_fix_of_the_log_helps(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz, doc json)")
    handlers = "conflict_handlers:\n  - {table: public.t, method: maximum, columns: [v, %s], resolution_column: %s}\n"
    checked.file.write_text(FILE + handlers % ("at", "at"))
    (finding,) = [f for f in checked.findings() if f.path.startswith("applies.")]
    assert finding.path.endswith("table public.t")
    assert "the source's log has no old values of the table outside its key" in finding.problem
    checked.execute("a", finding.fix.removeprefix("at the source: "))
    assert not [f for f in checked.findings() if f.path.startswith("applies.")]
    for column, problem in (
        ("doc", "is json, whose values have no order"),
        ("id", "id is in the key"),
        ("late", "the table has no column late"),
    ):
        checked.file.write_text(FILE + handlers % (column, column))
        assert any(problem in f.problem for f in checked.findings())
    checked.file.write_text(FILE + "conflict_handlers: [{table: public.nowhere, method: discard}]\n")
    (finding,) = [f for f in checked.findings() if f.path.startswith("applies.")]
    assert (finding.is_error, "public.nowhere, a table that it does not get from a" in finding.problem) == (False, True)


def test_handlers_of_tables_that_do_not_arrive_are_said(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    dml = "dml_handlers: [{table: public.%s, statements: [lcr.execute true]}]\n"
    checked.file.write_text(FILE + dml % "t")
    assert not [f for f in checked.findings() if f.path.startswith("applies.")]
    (checked.file.parent / "own.py").write_text(
        "def fix(lcr, error, session):\n    pass\n\n\ndef run(lcr, session):\n    pass\n"
    )
    errors = 'code: .\nerror_handlers: [{table: public.%s, function: "own:fix"}]\n'
    for handlers in (
        dml % "nowhere",
        errors % "nowhere",
        'code: .\ndml_handlers: [{table: public.t, function: "own:run", tables: [public.nowhere]}]\n',
    ):
        checked.file.write_text(FILE + handlers)
        (finding,) = [f for f in checked.findings() if f.path.startswith("applies.")]
        assert (finding.is_error, "public.nowhere, a table that it does not get from a" in finding.problem) == (
            False,
            True,
        )


def test_partitions_made_later_are_said_to_lack_a_replica_identity_that_the_table_has_no_key_for(
    checked: Checked,
) -> None:
    def said() -> list[str]:
        return [each.path for each in checked.findings() if "partition that is made later" in each.problem]

    for site in ("a", "b"):
        checked.execute(site, *(statement.replace(" PRIMARY KEY", "") for statement in PARTITIONED))
        checked.execute(site, "ALTER TABLE ev_1 REPLICA IDENTITY FULL")
    assert said() == ["sites.a table public.ev"]
    # As it says.
    checked.execute("a", "CREATE TABLE ev_later PARTITION OF ev FOR VALUES FROM (1000) TO (1001)")
    (error,) = [each for each in checked.findings() if each.path.endswith("partition public.ev_later")]
    assert error.is_error
    checked.execute("a", error.fix.partition(" -- ")[0], "ALTER TABLE ev ADD PRIMARY KEY (id)")
    assert said() == []
