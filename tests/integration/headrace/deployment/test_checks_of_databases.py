"""Findings of `check` and `plan` about real databases together, before `up` would refuse the topology.

Rows are in `test_checks_of_rows`, types in `test_checks_of_types`. Longer than 500 lines: every finding is searched for
in the same pair of databases, and its fix is run there.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import closing

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Finding, Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import Scn
from headrace.rules.rule import Rule, RuleSet
from tests.support.databases.checked import FILE, PARTITIONED, Checked, rows
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_one_database_under_two_names_is_reported(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
    checked.execute("a", "CREATE TABLE t (id int PRIMARY KEY)")
    name = psycopg.conninfo.make_conninfo(checked.dsns["a"], host="localhost")
    assert name != checked.dsns["a"]
    monkeypatch.setenv("TEST_B_DSN", name)
    assert [(f.path, f.problem) for f in checked.findings() if "same database" in f.problem] == [
        ("sites.b", "is the same database as sites.a, under another name"),
    ]
    monkeypatch.setenv("TEST_B_DSN", checked.dsns["b"])
    assert not [f for f in checked.findings() if "same database" in f.problem]


@pytest.mark.parametrize("site", ["a", "b"])
def test_partition_that_is_a_foreign_table_is_refused_by_name(checked: Checked, site: str) -> None:
    """A copy and a comparison skip it, and the log has none of it: the rest of the table would be taken for the whole."""
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
    # it is a separate table now, and its rows are in no log
    assert left == ([("sites.a table public.ev_old", False)] if site == "a" else [])


def test_unlogged_destination_table_or_partition_is_warned_of(checked: Checked) -> None:
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


def test_role_that_may_only_read_gets_every_grant_and_they_suffice(
    checked: Checked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the schema headrace belongs to another role: what the role cannot query hides no finding."""
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
        for _ in range(5):  # a right on a schema reveals which rights on its tables are missing, and so on
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


def test_missing_tables_are_created_by_one_command_with_their_dependents(
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

    # For some tables of a schema, one command creates those alone, with their keys.
    checked.execute("b", "DROP TABLE addresses, customers")
    (missing,) = [finding for finding in checked.findings() if finding.is_error]
    assert missing.problem == "2 tables do not exist here: public.addresses, public.customers"
    followed(checked, missing.fix, pg_destination)
    assert [finding for finding in checked.findings() if finding.is_error] == []
    assert rows(checked, "a", constraints) == rows(checked, "b", constraints)


def followed(checked: Checked, command: str, server: EmbeddedServer) -> None:
    """Run a command as printed."""
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


def _copied(checked: Checked) -> None:
    """Set up the state after `up`: the tables of a are captured, and each is recorded as copied at b."""
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


def test_renamed_source_table_gets_the_rename_as_its_only_fix(checked: Checked) -> None:
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
        assert not checked.findings(), "it is not called a table that was never copied, whose rows may be kept"
    finally:
        with closing(PostgresSource(checked.dsns["a"], site="a")) as source:
            source.remove("checked")


def test_unseen_conflicts_are_reported_and_the_fix_suffices(checked: Checked) -> None:
    """Both sites write t. Without old values an UPDATE finds the other site's row by its key alone."""

    def unseen() -> list[Finding]:
        return [finding for finding in checked.findings() if "the conflict is not detected" in finding.problem]

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


def test_colliding_sequences_of_two_writers_are_reported_and_separated(checked: Checked) -> None:
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


def test_sequence_that_a_default_names_is_the_one_that_can_collide(checked: Checked) -> None:
    """The sequence that the column owns is not used."""
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


def test_unreadable_table_is_reported_with_the_others(checked: Checked, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_keys_with_destination_only_columns_are_reported(checked: Checked) -> None:
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


def test_source_only_partitions_are_reported_and_the_fixes_create_them(checked: Checked) -> None:
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


def test_default_partition_at_the_destination_takes_rows_of_missing_ones(checked: Checked) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)"
    checked.execute("a", table, "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)")
    checked.execute("b", table, "CREATE TABLE rest PARTITION OF t DEFAULT")
    assert not [finding for finding in checked.findings() if "no partition here" in finding.problem]


def test_partition_whose_name_a_table_has_is_to_be_attached(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(
            site, "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)", "CREATE TABLE t1 (id int PRIMARY KEY)"
        )
    checked.execute("a", "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES FROM (0) TO (100)")
    (finding,) = [finding for finding in checked.findings() if "no partition here" in finding.problem]
    checked.execute("b", finding.fix)
    assert not [finding for finding in checked.findings() if "no partition here" in finding.problem]


def test_keys_on_other_columns_than_the_sources_are_reported(checked: Checked) -> None:
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


def test_conflict_handlers_are_checked_against_tables_and_log_fix_works(checked: Checked) -> None:
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


def test_handlers_of_tables_that_do_not_arrive_are_reported(checked: Checked) -> None:
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


def test_later_partitions_without_a_replica_identity_or_key_are_reported(checked: Checked) -> None:
    def said() -> list[str]:
        return [each.path for each in checked.findings() if "partition that is made later" in each.problem]

    for site in ("a", "b"):
        checked.execute(site, *(statement.replace(" PRIMARY KEY", "") for statement in PARTITIONED))
        checked.execute(site, "ALTER TABLE ev_1 REPLICA IDENTITY FULL")
    assert said() == ["sites.a table public.ev"]
    # As the finding says.
    checked.execute("a", "CREATE TABLE ev_later PARTITION OF ev FOR VALUES FROM (1000) TO (1001)")
    (error,) = [each for each in checked.findings() if each.path.endswith("partition public.ev_later")]
    assert error.is_error
    checked.execute("a", error.fix.partition(" -- ")[0], "ALTER TABLE ev ADD PRIMARY KEY (id)")
    assert said() == []


COLUMNS = "id int4range, valid int4range"
KEY, TEMPORAL = "PRIMARY KEY (id, valid)", "PRIMARY KEY (id, valid WITHOUT OVERLAPS)"
EXCLUDE = "EXCLUDE USING gist (id WITH =, valid WITH &&)"


@pytest.mark.parametrize(
    ("here", "there", "name"),
    [
        (KEY, TEMPORAL, "t_pkey"),
        pytest.param(KEY, f"{KEY}, {EXCLUDE}", "t_id_valid_excl", marks=pytest.mark.soak),
        (f"{KEY}, {EXCLUDE} WHERE (NOT isempty(valid))", f"{KEY}, {EXCLUDE}", "t_id_valid_excl"),
        (f"{KEY}, EXCLUDE USING gist (valid WITH &&)", f"{KEY}, {EXCLUDE}", ""),
        (TEMPORAL, f"{KEY}, {EXCLUDE}", ""),
        pytest.param(TEMPORAL, TEMPORAL, "", marks=pytest.mark.soak),
        pytest.param(TEMPORAL, KEY, "", marks=pytest.mark.soak),
        (KEY, f"{KEY}, EXCLUDE USING gist (id WITH =, valid WITH =)", ""),
    ],
)
def test_colliding_constraints_of_the_destination_are_reported_with_fixes(
    checked: Checked, here: str, there: str, name: str
) -> None:
    checked.execute("a", f"CREATE TABLE t ({COLUMNS}, {here})")
    checked.execute("b", f"CREATE TABLE t ({COLUMNS}, {there})")
    if not name:
        assert checked.about("t") == []
        return
    (finding,) = checked.about("t")
    assert finding.problem.startswith(f"the constraint {name} (")
    assert not finding.is_error
    first, second = finding.fix.split(" -- or at the source, if no two rows collide in it: ")
    checked.execute("a", second)
    assert checked.about("t") == []
    checked.execute("a", "DROP TABLE t", f"CREATE TABLE t ({COLUMNS}, {here})")
    assert checked.about("t") == [finding]
    checked.execute("b", first)
    assert checked.about("t") == []


def test_logged_old_values_are_those_of_the_partitions(checked: Checked) -> None:
    """ALTER TABLE on a partitioned table gives its partitions no replica identity, and the log follows the partitions."""
    for site in ("a", "b"):
        checked.execute(
            site,
            "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamptz) PARTITION BY RANGE (id)",
            "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
        )
    handlers = "conflict_handlers: [{table: public.t, method: maximum, columns: [v, at], resolution_column: at}]\n"
    checked.file.write_text(FILE + handlers)

    def lacking() -> list[Finding]:
        return [f for f in checked.findings() if "has no old values" in f.problem]

    assert len(lacking()) == 1
    checked.execute("a", "ALTER TABLE t REPLICA IDENTITY FULL")
    assert len(lacking()) == 1
    checked.execute("a", "ALTER TABLE t_1 REPLICA IDENTITY FULL")
    (finding,) = lacking()
    assert finding.fix.endswith("if it is partitioned: of each of its partitions, which do not get it from the table")
    checked.execute("a", finding.fix.removeprefix("at the source: ").replace('"t"', '"t_2"'))
    assert lacking() == []
    checked.execute("a", "ALTER TABLE t REPLICA IDENTITY DEFAULT")
    assert lacking() == []
