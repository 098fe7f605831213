"""Findings of `check` and `plan` about rows at several sites: who owns them, which are to be emptied, and which never."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import Finding, Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.deployment.inspection import check_topology, plan_topology
from headrace.lcr.scn import Scn
from tests.support.databases.checked import FILE, PARTITIONED, Checked, replicated
from tests.support.session.matrices import values
from topology.edits.stored import PREPARED_FILE, spec_to_json
from topology.file.reading import read_topology

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_rows_of_a_way_that_ended_and_returns_are_reported_as_out_of_date(checked: Checked) -> None:
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
    assert "docs/tasks/add-a-site.md" in found.fix
    checked.execute("a", "TRUNCATE t")  # as printed if a was restored from a backup that is too old
    assert [finding for finding in checked.about("t") if finding.is_error] == []
    assert "  at b, a has none: public.t\n" in plan_topology(checked.file, ask_databases=True).as_text()


def test_full_site_is_not_to_be_emptied_for_its_receiver(checked: Checked) -> None:
    """The rows at a are the only ones, and b gets them."""
    checked.file.write_text(FILE.replace("from: a, to: [b]", "between: [a, b]"))
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)")
    checked.execute("a", "INSERT INTO t VALUES (1)")
    assert [finding for finding in checked.about("t") if finding.is_error] == []
    assert (
        "Rows that stay as they are\n  at a, b has none: public.t\n"
        in plan_topology(checked.file, ask_databases=True).as_text()
    )
    checked.execute("b", "INSERT INTO t VALUES (2)")  # its own rows: only an operator can judge them
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
def test_full_one_of_three_sites_keeps_its_rows_and_plan_says_so(three: Checked, shape: str) -> None:
    """Whether it is the hub, a spoke, an intermediate one, or one of equals."""
    three.file.write_text(f"{THREE_SITES}  - {{tables: [public.t], {SHAPES[shape]}}}\n")
    three.execute("a", "INSERT INTO t VALUES (1, 1)")
    assert [finding for finding in three.about("t") if finding.is_error] == []
    plan = plan_topology(three.file, ask_databases=True)
    said = plan.as_text().partition("Rows that stay as they are\n")[2].partition("\n\n")[0].splitlines()
    neighbours = {each.source for each in read_topology(three.file).applies if each.site == "a"}
    assert sorted(said) == [f"  at a, {other} has none: public.t" for other in sorted(neighbours)]


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
def test_with_rows_at_two_of_three_sites_no_deletion_is_advised(three: Checked, shape: str) -> None:
    three.file.write_text(f"{THREE_SITES}  - {{tables: [public.t], {SHAPES[shape]}}}\n")
    three.execute("a", "INSERT INTO t VALUES (1, 1)")
    three.execute("b", "INSERT INTO t VALUES (2, 2)")
    found = [finding for finding in three.about("t") if finding.is_error]
    assert {finding.path for finding in found} == {"sites.a table public.t", "sites.b table public.t"}
    for finding in found:
        assert "empty it" not in finding.fix
        assert "delete no" in finding.fix


def test_site_that_leaves_before_another_has_its_rows_is_named(three: Checked) -> None:
    """c still had to get a's rows when a was lost: b has them, but c would never get them, with no problem shown."""
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
    """Return the findings about an edit. Only the record of the preparation exists in this folder, so certificates are
    missing, too.
    """
    found, planned = (
        [each for each in ask(checked.file, ask_databases=True).findings if "that it has brought" in each.problem]
        for ask in (check_topology, plan_topology)
    )
    assert found == planned
    return found


def test_only_existing_rows_are_never_to_be_deleted(checked: Checked) -> None:
    """The file has the direction reversed: the site that it would copy from is empty."""
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


def test_rows_of_an_inheriting_table_are_not_those_of_its_parent(checked: Checked) -> None:
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
def test_emptying_a_table_as_check_says_removes_no_other_tables_rows(checked: Checked, made: tuple[str, ...]) -> None:
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


@pytest.mark.soak
def test_partition_of_an_arriving_table_is_to_be_detached_and_not_emptied(checked: Checked) -> None:
    """The source has it as a separate table. Its rows here belong to the partitioned table."""
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
        assert "is a partition of public.ev here, but a separate table at the source" in found.problem
        assert found.fix.startswith(f'ALTER TABLE "public"."{parent}" DETACH PARTITION "public"."{table}";')
        checked.execute("b", found.fix.partition(" -- ")[0])
        (found,) = [finding for finding in checked.about(table) if finding.is_error]
        assert found.problem == "the destination table is not empty, and was never copied"


def test_all_filled_tables_are_reported_at_once_but_none_in_progress(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, *(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in ("t", "u", "v")))
    checked.execute("b", "INSERT INTO t VALUES (1)", "INSERT INTO v VALUES (1)")
    assert [f.path for f in checked.findings() if "not empty" in f.problem] == [
        "sites.b table public.t",
        "sites.b table public.v",
    ]
    checked.execute("b", "TRUNCATE t, v")
    assert not [f for f in checked.findings() if "not empty" in f.problem]


FILLED_FROM_A = {
    "n-way": ("between: [a, b, c]", "a.1", "DONE"),
    "another table": ("between: [a, b, c]", "a.2", "DONE"),
    "failed": ("between: [a, b, c]", "a.1", "FAILED"),
    "hub": ("hub: b, spokes: [a, c]", "a.1", "DONE"),
}


@pytest.mark.parametrize("case", values(FILLED_FROM_A, "n-way", "hub"))
def test_two_sites_that_a_third_one_filled_are_to_be_compared_with_it(three: Checked, case: str) -> None:
    shape, identity, state = FILLED_FROM_A[case]
    three.file.write_text(f"{THREE_SITES}  - {{tables: [public.t], {shape}}}\n")
    for site in "abc":
        three.execute(site, "INSERT INTO t VALUES (1, 1)")
    _recorded(three, "apply_from_a_at_b", "a", "DONE", 9)
    _recorded(three, "apply_from_a_at_c", "a", state, 9, at="c", identity=identity)
    found = {each.path: each for each in three.about("t") if each.path != "sites.a table public.t" and each.is_error}
    if case != "n-way":
        assert found
        assert not any("headrace verify" in each.fix for each in found.values())
        return
    assert found.keys() == {"sites.b table public.t", "sites.c table public.t"}
    assert found["sites.c table public.t"].problem == (
        "the destination table is not empty: a sends it to b and c, which now send to each other. They may differ: what"
        " users of b changed before this way is recorded does not come to c"
    )
    assert found["sites.c table public.t"].fix == (
        "run `headrace up FILE`, which asks about this table again; then let changes of the table at b and c rest (those"
        " at a may go on), and run `headrace verify FILE public.t`. If a -> b and a -> c are identical, with no row in"
        " flight, keep the rows with `headrace up FILE --keep-existing`; changes may resume when it has ended. If not,"
        " correct the rows that it names as it says, and compare again"
    )


def _recorded(
    checked: Checked, apply: str, source: str, state: str, scn: int, *, at: str = "b", identity: str = ""
) -> None:
    """Give an apply process a record of public.t."""
    spec = read_topology(checked.file)
    with closing(PostgresDestination(checked.dsns[at], site=at)) as there:
        there.prepare(spec.name)
        epoch = there.raise_epoch(spec.name, apply).epoch
        record = Instantiation(
            source=source,
            identity=identity or f"{source}.1",
            owner="public",
            name="t",
            scn=Scn(scn),
            state=state,
            digest="copied",
        )
        there.record_instantiation(spec.name, apply, epoch, record)


def test_rows_that_up_refused_are_reported_again_without_blocking_up(checked: Checked) -> None:
    """`status` names `headrace check` for tables that can be emptied."""
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    (apply,) = read_topology(checked.file).applies
    _recorded(checked, apply.name, "a", "FAILED", 0)
    (finding,) = [finding for finding in checked.findings() if "not empty" in finding.problem]
    assert not finding.is_error
    assert "or empty it, and no other table: BEGIN;" in finding.fix


def test_rows_that_another_apply_process_brought_are_not_to_be_emptied(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _recorded(checked, "apply_from_c_at_b", "c", "DONE", 1)
    (finding,) = [finding for finding in checked.findings() if "not empty" in finding.problem]
    assert finding.problem == (
        "the destination table is not empty: it has the rows of apply process apply_from_c_at_b, from site c"
    )
    assert finding.fix.startswith("delete none: rows of a are not copied beside them")
    assert "keep them with `headrace up FILE --keep-existing`" in finding.fix


def test_rows_changed_without_events_since_their_copy_are_reported(checked: Checked) -> None:
    for site in ("a", "b"):
        checked.execute(site, "CREATE TABLE t (id int PRIMARY KEY, v int)")
    with replicated(checked):
        assert checked.about("t") == []
        checked.execute("a", "ALTER TABLE t ALTER v TYPE int USING v + 1")
        (found,) = checked.about("t")
        assert "column v was rewritten" in found.problem
        assert "headrace copy FILE public.t" in found.fix
