"""Remedies for problems that copying one table cannot solve are followed as printed.

The problems are a lost log, a destination that needs more than redo has, columns and tables that the file no longer
matches, and a dropped schema. `up`, `status` and `explain` print the remedies. The commands are run as printed, and
both sites are equal afterwards.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import psycopg
import pytest

from headrace.console.exit_codes import DONE, FAILURE, FINDING
from headrace.databases.postgres.catalog.source_tables import slot_name
from headrace.redo.segments import list_segments
from tests.support.clusters.command_line import commands_in, run, typed
from tests.support.clusters.sites import NAME, Sites
from tests.support.clusters.system import wait_until

pytestmark = [
    pytest.mark.unit("sites", order=7),
    pytest.mark.cluster,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.soak,
]

ONE_WAY = "replicate: [{tables: [ways.*], from: a, to: [b]}]"
ROWS = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def made(sites: Sites, statements: str = ROWS, *, names: tuple[str, ...] = ("a", "b")) -> None:
    sites.free("ways", sites=names)
    sites.remake("ways", statements, sites=names)


def said(file: Path, of: str) -> str:
    """Return the problem and the fix that `status` prints."""

    def found() -> str:
        _, out, err = run("status", str(file))
        text = " ".join((out + err).split())
        return text[text.index(of) :] if of in text else ""

    return str(wait_until(f"status says {of!r}", found))


def nothing_is_said(file: Path) -> None:
    wait_until("nothing is said any more", lambda: run("status", str(file))[0] == DONE)


def same(system: Sites, *tables: str, sites: tuple[str, ...] = ("a", "b")) -> None:
    system.last[:] = [system.deployment]
    system.wait_caught_up()
    for table in tables:
        assert len({system.digest(site, table) for site in sites}) == 1, table


def until(what: str, server: psycopg.Connection, statement: str) -> None:
    """Run a statement until no other session blocks it."""

    def done() -> bool:
        try:
            server.execute(statement.encode())
        except psycopg.errors.ObjectInUse:
            return False
        return True

    wait_until(what, done)


def lose_slot(system: Sites, site: str) -> None:
    name = slot_name(NAME, site)
    with system.connection(site) as user:
        user.execute("SET lock_timeout = '5s'")
        until(
            "the slot is dropped",
            user,
            f"SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = '{name}';"
            f" SELECT pg_drop_replication_slot('{name}')",
        )


def test_remedy_for_a_lost_slot_works(sites: Sites):
    made(sites)
    sites.execute("a", "INSERT INTO ways.t SELECT n, 'before' FROM generate_series(1, 100) n")
    system = sites.by(ONE_WAY)
    system.up()
    lose_slot(system, "a")
    system.execute("a", "INSERT INTO ways.t VALUES (101, 'lost'); DELETE FROM ways.t WHERE id = 1")
    file = shlex.quote(str(system.file))
    printed = said(system.file, "does not exist")
    down, up = commands_in(printed)[:2]
    assert (down, up) == (f"headrace down {file} --purge --keep-servers", f"headrace up {file}")
    assert f"`{down}`, empty the replicated tables at the destinations" in printed
    typed(down)
    system.execute("b", "TRUNCATE ways.t")
    typed(up)
    system.execute("a", "INSERT INTO ways.t VALUES (102, 'after')")
    same(system, "ways.t")
    nothing_is_said(system.file)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_remedy_for_a_lost_publication_of_two_writing_sites_works(sites: Sites, lost: str):
    made(sites)
    sites.execute("a", "INSERT INTO ways.t SELECT n, 'before' FROM generate_series(1, 100) n")
    system = sites.by("replicate: [{tables: [ways.*], between: [a, b]}]")
    system.up()
    for n, site in enumerate(("a", "b")):
        system.execute(site, f"INSERT INTO ways.t VALUES ({200 + n}, 'at {site}')")
    same(system, "ways.t")
    system.execute(lost, f"DROP PUBLICATION {slot_name(NAME, lost)}; INSERT INTO ways.t VALUES (300, 'lost')")
    file = shlex.quote(str(system.file))
    printed = said(system.file, "was dropped")
    down, up = commands_in(printed)[:2]
    assert (down, up) == (f"headrace down {file} --purge --keep-servers", f"headrace up {file}")
    assert "keep the rows of one site (a or b can be the one; here it is a)" in printed
    assert "empty the replicated tables at b, and not at a" in printed
    typed(down)
    system.execute("b", "TRUNCATE ways.t")
    typed(up)
    for n, site in enumerate(("a", "b")):
        system.execute(site, f"INSERT INTO ways.t VALUES ({400 + n}, 'at {site}')")
    same(system, "ways.t")
    assert system.execute("a", "SELECT count(*) FROM ways.t") == [(104 + (lost == "a"),)]
    nothing_is_said(system.file)


TO = "replicate: [{{tables: [ways.*], from: a, to: [{to}]}}]"


@pytest.mark.parametrize("others", [("c",), ()], ids=["one of two", "the only one"])
def test_remedy_for_a_destination_restored_from_an_old_backup_works(sites: Sites, others: tuple[str, ...]):
    names = ("a", "b", *others)
    system = sites.by(ONE_WAY, sites=names)
    made(system, names=names)
    system = sites.by(TO.format(to=", ".join(names[1:])), sites=names)
    system.execute("a", "INSERT INTO ways.t SELECT n, 'before' FROM generate_series(1, 100) n")
    system.up()
    file, server = str(system.file), system.servers["b"]
    same(system, "ways.t", sites=names)

    # Take a backup with the server and all processes stopped.
    assert run("down", file)[0] == DONE
    data = server.data_folder
    copy = Path(f"{data}.backup")
    subprocess.run(["cp", "-a", str(data), str(copy)], check=True)
    try:
        assert run("up", file)[0] == DONE
        redo = system.spec.state_dir / "sites" / "a" / "redo"
        first = list_segments(redo)[-1].number + 1
        number = 1000

        def is_purged() -> bool:
            nonlocal number
            number += 1
            system.execute("a", "INSERT INTO ways.t SELECT %s, repeat(md5(%s::text), 10000)", (number, number))
            return list_segments(redo)[0].number > first

        wait_until("redo of the backup's time is purged", is_purged)
        same(system, "ways.t", sites=names)
        assert run("down", file)[0] == DONE
        subprocess.run(["rm", "-r", str(data)], check=True)
        copy.rename(data)
    finally:
        subprocess.run(["rm", "-rf", str(copy)], check=True)
    code, out, err = run("up", file)
    assert code == FAILURE
    printed = " ".join((out + err).split())
    assert "its destination has less than it had acknowledged" in printed
    system.execute("a", "INSERT INTO ways.t VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET v = 'meanwhile'")
    follow_copy_one_again(sites, system, printed, others)
    system.execute("a", "INSERT INTO ways.t VALUES (2, 'x') ON CONFLICT (id) DO UPDATE SET v = 'after'")
    same(system, "ways.t", sites=names)
    nothing_is_said(system.file)


def follow_copy_one_again(sites: Sites, system: Sites, printed: str, others: tuple[str, ...]) -> None:
    names = ("a", "b", *others)
    take_out, up = f"headrace up {shlex.quote(str(system.file))}", f"headrace up {shlex.quote(str(system.file))}"
    assert (
        f"Take everything that goes to this one or comes from it out of the topology file, leave its site there and"
        f" run `{take_out}`, empty its replicated tables, put it back and run `{up}`" in printed
    ), printed
    sites.by(TO.format(to=", ".join(others)) if others else "", sites=names)
    typed(take_out)
    system.execute("b", "TRUNCATE ways.t")
    sites.by(TO.format(to=", ".join(names[1:])), sites=names)
    typed(up)


TRANSFORMED = """
captures:
  capture_a:
    site: a
    source: a
    queue: q_a
    rules:
      include:
        - {{table: ways.other}}
        {staff}
        {kept}
replicate: [{{tables: [ways.*], from: a, to: [b]}}]
"""
STAFF = "- {{table: ways.staff, transform: [{{delete_columns: [{secret}]}}]}}"
KEPT = "- {{table: ways.kept, transform: [{{keep_columns: [id, {value}]}}]}}"


def transformed(sites: Sites, *, secret: str = "secret", value: str = "v", is_left_out: bool = False) -> Sites:
    staff, kept = ("", "") if is_left_out else (STAFF.format(secret=secret), KEPT.format(value=value))
    return sites.by(TRANSFORMED.format(staff=staff, kept=kept))


@pytest.mark.parametrize("way", ["give it its name back", "put it back"])
def test_remedy_for_renamed_columns_that_a_transformation_names_works(sites: Sites, way: str):
    made(sites, "CREATE TABLE other (id int PRIMARY KEY)")
    sites.execute(
        "a",
        "CREATE TABLE ways.staff (id int PRIMARY KEY, v text, secret text); CREATE TABLE ways.kept (id int PRIMARY KEY,"
        " v text, w text)",
    )
    sites.execute(
        "b",
        "CREATE TABLE ways.staff (id int PRIMARY KEY, v text); CREATE TABLE ways.kept (id int PRIMARY KEY, v text)",
    )
    rows = (
        "INSERT INTO ways.staff SELECT n, 'v', 'x' FROM generate_series({0}, {0} + 9) n; INSERT INTO ways.kept SELECT"
        " n, 'v', 'w' FROM generate_series({0}, {0} + 9) n; INSERT INTO ways.other VALUES ({0})"
    )
    sites.execute("a", rows.format(1))
    system = transformed(sites)
    system.up()
    system.execute("a", rows.format(11))
    system.execute("a", "ALTER TABLE ways.staff RENAME secret TO hidden; ALTER TABLE ways.kept RENAME v TO value")
    system.execute("a", rows.format(21))
    printed = said(system.file, "named by a transformation: ")
    assert printed.startswith(
        "named by a transformation: v of ways.kept (capture_a), secret of ways.staff (capture_a)"
    ), printed
    fix = printed.partition("fix: ")[2]
    file = shlex.quote(str(system.file))
    if way == "give it its name back":
        assert fix.startswith(
            "give the column its name back at the source, and do not add it at the destination; then "
        )
        copy = commands_in(fix)[0]
        assert copy == f"headrace copy {file} TABLE"
        system.execute("a", "ALTER TABLE ways.staff RENAME hidden TO secret; ALTER TABLE ways.kept RENAME value TO v")
        for table in ("ways.staff", "ways.kept"):
            typed(copy.replace("TABLE", table))
        value = "v"
    else:
        up, wait = commands_in(fix)[1:3]
        assert (up, wait) == (f"headrace up {file}", f"headrace wait {file} --caught-up")
        assert f"Or take the table out of the rules, run {up} and {wait}, and put it back with the names of now" in fix
        transformed(sites, is_left_out=True)
        typed(up)
        typed(wait)
        system = transformed(sites, secret="hidden", value="value")
        # `up` prints the columns that the destination lacks.
        out, err = typed(up, code=FINDING)
        alter = re.search(r'ALTER TABLE "ways"."kept" RENAME COLUMN [^;]+;', " ".join((out + err).split()))
        assert alter, (out, err)
        system.execute("b", alter[0])
        typed(up)
        value = "value"
    system.execute("a", rows.format(31))
    same(system, "ways.other")
    for statement, there in (
        ("SELECT id, v FROM ways.staff ORDER BY id", "SELECT id, v FROM ways.staff ORDER BY id"),
        (f"SELECT id, {value} FROM ways.kept ORDER BY id", f"SELECT id, {value} FROM ways.kept ORDER BY id"),
    ):
        assert system.execute("a", statement) == system.execute("b", there)
    nothing_is_said(system.file)


@pytest.mark.parametrize("way", ["add", "leave out", "take out of the file"])
def test_remedy_for_a_table_that_was_renamed_out_of_the_rules_works(sites: Sites, way: str):
    made(sites, "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
    sites.execute("a", "INSERT INTO ways.t VALUES (1, 'before'); INSERT INTO ways.u VALUES (1, 'before')")
    rules = "replicate: [{{tables: [{}], from: a, to: [b]}}]"
    system = sites.by(rules.format("ways.t, ways.u"))
    system.up()
    system.execute("a", "ALTER TABLE ways.t RENAME TO t_new")
    system.execute("a", "INSERT INTO ways.t_new VALUES (2, 'renamed'); INSERT INTO ways.u VALUES (2, 'waits')")
    printed = said(system.file, "renamed since `up`")
    assert "ways.t_new" in printed
    fix = printed.partition("fix: ")[2]
    up = f"headrace up {shlex.quote(str(system.file))}"  # the next finding follows it without a separator
    rename = re.match(
        r"to replicate them on, rename them at the destinations, too \((ALTER TABLE [^;]+;)\), and name the new names in"
        rf" the rules; to leave them out, leave the rules as they are; then {re.escape(up)}",
        fix,
    )
    assert rename, fix
    if way == "add":
        system.execute("b", rename[1])
    named = {"add": "ways.t_new, ways.u", "leave out": "ways.t, ways.u", "take out of the file": "ways.u"}
    system = sites.by(rules.format(named[way]))
    typed(up)
    system.execute("a", "INSERT INTO ways.t_new VALUES (3, 'after'); INSERT INTO ways.u VALUES (3, 'after')")
    same(system, "ways.u", *(["ways.t_new"] if way == "add" else []))
    nothing_is_said(system.file)


def test_remedy_for_a_dropped_schema_headrace_works(sites: Sites):
    made(sites)
    sites.execute("a", "INSERT INTO ways.t SELECT n, 'before' FROM generate_series(1, 100) n")
    system = sites.by(ONE_WAY)
    system.up()
    same(system, "ways.t")
    system.execute("b", "DROP SCHEMA headrace CASCADE")
    system.execute("a", "INSERT INTO ways.t VALUES (101, 'behind it'); DELETE FROM ways.t WHERE id = 1")
    file = shlex.quote(str(system.file))
    printed = said(system.file, "the schema headrace")
    print(printed)
    down, up = commands_in(printed)[:2]
    assert (down, up) == (f"headrace down {file} --purge --keep-servers", f"headrace up {file}")
    typed(down)
    system.execute("b", "TRUNCATE ways.t")
    typed(up)
    system.execute("a", "INSERT INTO ways.t VALUES (102, 'after')")
    same(system, "ways.t")
    nothing_is_said(system.file)


@pytest.mark.parametrize("site", ["a", "b"])
def test_remedy_for_a_database_that_takes_no_connections_works(sites: Sites, site: str):
    made(sites)
    sites.execute("a", "INSERT INTO ways.t SELECT n, 'before' FROM generate_series(1, 100) n")
    system = sites.by(ONE_WAY)
    system.up()
    same(system, "ways.t")
    with psycopg.connect(system.servers[site].dsn("template1"), autocommit=True) as user:
        user.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS false")
        try:
            user.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'postgres'")
            if site == "b":
                system.execute("a", "INSERT INTO ways.t VALUES (101, 'meanwhile')")
            printed = said(system.file, "not currently accepting connections")
            print(printed)
            found = re.search(r"fix: (ALTER DATABASE [^;]+;)", printed)
            assert found, printed
            user.execute(found[1].encode())
        except BaseException:
            user.execute("ALTER DATABASE postgres ALLOW_CONNECTIONS true")
            raise
    system.execute("a", "INSERT INTO ways.t VALUES (102, 'after')")
    same(system, "ways.t")
    nothing_is_said(system.file)


@pytest.mark.parametrize("way", ["keep", "empty"])
def test_remedy_for_rows_that_arrived_before_the_copy_works(sites: Sites, way: str):
    made(sites, "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY, v text)")
    sites.execute("a", "INSERT INTO ways.t VALUES (1, 'before'); INSERT INTO ways.u VALUES (1, 'before')")
    sites.by("replicate: [{tables: [ways.t], from: a, to: [b]}]").up()
    file = shlex.quote(str(sites.file))
    typed(f"headrace stop {file} apply:apply_from_a_at_b")
    system = sites.by(ONE_WAY)
    typed(f"headrace up {file}")
    rows = "(1, 'before')" if way == "keep" else "(2, 'own')"
    system.execute("b", f"INSERT INTO ways.u VALUES {rows}")
    typed(f"headrace start {file} apply:apply_from_a_at_b")
    printed = said(system.file, "the destination table is not empty")
    keep, check = commands_in(printed)[:2]
    assert (keep, check) == (f"headrace up {file} --keep-existing", f"headrace check {file}"), printed
    if way == "keep":
        typed(keep)
    else:
        _, out, err = run(*shlex.split(check)[1:])
        found = re.search(r"empty it, and no other table: (BEGIN;.*?COMMIT;)", " ".join((out + err).split()))
        assert found, (out, err)
        system.execute("b", found[1])
    system.execute("a", "INSERT INTO ways.t VALUES (3, 'after'); INSERT INTO ways.u VALUES (3, 'after')")
    same(system, "ways.t", "ways.u")
    nothing_is_said(system.file)


WIDE = """
captures:
  capture_a: {site: a, source: a, queue: q_a, rules: {include: [{schema: ways}]}}
replicate: [{tables: [ways.t, ways.u], from: a, to: [b]}]
"""


def test_table_that_was_never_copied_is_copied_by_the_command_of_explain(sites: Sites):
    """It got a name of the rules while the topology was running."""
    made(sites, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    sites.execute("a", "CREATE TABLE ways.away (id int PRIMARY KEY, v text); INSERT INTO ways.away VALUES (1, 'away')")
    system = sites.by(WIDE)
    system.up()
    system.execute("b", "CREATE TABLE ways.u (id int PRIMARY KEY, v text)")
    system.execute("a", "ALTER TABLE ways.away RENAME TO u")
    system.execute("a", "INSERT INTO ways.u VALUES (2, 'renamed'); INSERT INTO ways.t VALUES (1, 'goes on')")
    file = shlex.quote(str(system.file))
    _, out, err = run("explain", str(system.file), "ways.u", "2")
    printed = " ".join((out + err).split())
    assert "ways.u was never copied to b" in printed, printed
    stop, start = commands_in(printed.partition("fix: ")[2])
    apply = "apply:apply_from_a_at_b"
    assert (stop, start) == (f"headrace stop {file} {apply}", f"headrace start {file} {apply}")
    typed(stop)
    typed(start)
    same(system, "ways.t", "ways.u")
    nothing_is_said(system.file)


ALL_WRITE = "replicate: [{{tables: [ways.*], between: [{}]}}]"


def copies(system: Sites) -> dict[str, str]:
    """Return the SCN of each apply process's copy of ways.t."""
    return {
        name: next((table["state"] for table in system.status(f"apply:{name}")["instantiation"]), "")
        for name in ("apply_from_a_at_b", "apply_from_b_at_c", "apply_from_a_at_c")
    }


def test_remedy_for_a_source_that_left_before_all_sites_had_its_rows_works(sites: Sites):
    """The source is lost. Its rows reached b but not c, where the copy failed: c had begun with b when b was empty."""
    names = ("a", "b", "c")
    made(sites.by(ALL_WRITE.format("b, c"), sites=names), names=names)  # c's server runs
    system = sites.by(ALL_WRITE.format("b, c"), sites=names)
    system.up()
    system.execute("a", "INSERT INTO ways.t SELECT n, 'before' FROM generate_series(1, 100) n")
    system.execute("c", "ALTER TABLE ways.t ADD CONSTRAINT narrow CHECK (v <> 'before')")
    system = sites.by(ALL_WRITE.format("a, b, c"), sites=names)
    file = shlex.quote(str(system.file))
    _, out, err = run("up", str(system.file))
    system.last[:] = [system.deployment]
    # b and c have begun with each other when both were empty: what is in flight there would be doubled by a copy of a.
    assert "headrace up FILE --keep-existing" in " ".join((out + err).split()).replace(file, "FILE"), out + err
    run("up", str(system.file), "--keep-existing")  # ends after it has reported the failed copy
    wanted = {"apply_from_a_at_b": "DONE", "apply_from_b_at_c": "DONE", "apply_from_a_at_c": "FAILED"}
    wait_until("b has the rows, and c has not", lambda: copies(system) == wanted)
    system.execute("b", "INSERT INTO ways.t VALUES (201, 'at b')")
    system.execute("c", "INSERT INTO ways.t VALUES (202, 'at c')")

    system = sites.by(ALL_WRITE.format("b, c"), sites=("b", "c"))
    _, out, err = run("check", str(system.file))
    printed = " ".join((out + err).split())
    assert "sites.c table ways.t: apply process apply_from_a_at_c leaves before" in printed, printed
    printed = printed[printed.index("If a is lost") :]
    verify, down, up = commands_in(printed)[:3]
    assert (verify, up) == (f"headrace verify {file}", f"headrace up {file}")
    assert (
        f"and `{verify}` names the table, wait until what was written at c has arrived at b, `{down}`, empty the table at"
        f" c, and `{up}`: it is copied from b" in printed
    )
    typed(f"headrace up {file}")
    system.last[:] = [system.deployment]
    system.execute("c", "ALTER TABLE ways.t DROP CONSTRAINT narrow; INSERT INTO ways.t VALUES (203, 'at c alone')")
    out, err = typed(verify, code=FINDING)
    assert "ways.t" in out + err
    typed(f"headrace wait {file} --caught-up")
    typed(down)
    system.execute("c", "TRUNCATE ways.t")
    typed(up)
    system.execute("b", "INSERT INTO ways.t VALUES (301, 'after at b')")
    system.execute("c", "INSERT INTO ways.t VALUES (302, 'after at c')")
    same(system, "ways.t", sites=("b", "c"))
    assert system.execute("c", "SELECT count(*) FROM ways.t") == [(105,)]
    nothing_is_said(system.file)
