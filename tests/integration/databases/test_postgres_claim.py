"""One copy of a topology per database: the second copy is refused with the place of the first, and can take over."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import psycopg
import pytest

from actors.site.connection import claim_on, embedded_server
from actors.source_database import DatabaseSite
from headrace.base.errors import DatabaseUnavailable, RunsElsewhere
from headrace.console.exit_codes import FINDING
from headrace.console.output import exit_code_of
from headrace.databases.postgres.claim import PostgresClaim, claim_name
from headrace.deployment.deployment import Deployment
from headrace.deployment.first_claim import claimed
from headrace.deployment.removal import Removal
from headrace.status.sites import SiteStatus
from tests.support.actors.statuses import status_of
from tests.support.clusters.system import system_folder, wait_until
from tests.support.session.reporting import note_started
from tests.support.wire.links import loopback
from topology.file.reading import read_topology
from topology.problems import TopologyError

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

HERE, THERE = "machine-a:/srv/*/ headrace", "machine-b:/home/ü/*/hr"  # neither may end the comment that contains it


def claim(dsn: str, place: str, identity: str = "1") -> PostgresClaim:
    return PostgresClaim(dsn, topology="hr", site="dbs1", place=place, identity=identity)


def test_second_copy_is_refused_with_place_and_time_of_the_first(source_database: str):
    with closing(claim(source_database, HERE)) as first, closing(claim(source_database, THERE)) as second:
        first.hold()
        first.hold()
        with pytest.raises(RunsElsewhere) as refused:
            second.hold()
        assert refused.value.message.startswith(f"topology hr runs already from {HERE} since 20")
        assert "--take-over" in refused.value.hint
        first.close()
        wait_until("the lock is free", lambda: _held(second))


def _held(claimed: PostgresClaim) -> bool:
    try:
        claimed.hold()
    except RunsElsewhere:
        return False
    return True


def test_copied_folder_is_another_place_and_so_is_a_place_of_the_same_name(source_database: str):
    with closing(claim(source_database, HERE)) as first:
        first.hold()
        for other in (claim(source_database, THERE, "1"), claim(source_database, HERE, "2")):
            with pytest.raises(RunsElsewhere):
                other.hold()


def test_next_life_of_the_same_copy_ends_the_session_of_its_last_one(source_database: str):
    with closing(claim(source_database, HERE)) as before, closing(claim(source_database, HERE)) as after:
        before.hold()
        after.hold()
        with pytest.raises(RunsElsewhere, match="was started again"):
            before.hold()


def test_lock_that_another_role_took_is_named_and_not_waited_for(source_database: str, monkeypatch: pytest.MonkeyPatch):
    """Any role that may connect can compute the number; none of our processes holds it exclusively."""
    monkeypatch.setattr("headrace.databases.postgres.claim._ENDED_TIMEOUT_S", 0.5)
    first = claim(source_database, HERE)
    with psycopg.connect(source_database, autocommit=True, application_name="a report") as user, closing(first):
        user.execute("SELECT pg_advisory_lock(%s)", (first._shared_key,))
        with pytest.raises(DatabaseUnavailable) as refused:
            first.hold()
        pid = user.info.backend_pid
        assert f"session {pid} of role {user.info.user}, which calls itself 'a report'" in refused.value.message
        assert f"SELECT pg_terminate_backend({pid})" in refused.value.hint
        user.execute("SELECT pg_advisory_unlock_all()")
        first.hold()


def test_waiter_for_the_shared_lock_is_named_instead_of_the_running_copy(
    source_database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("headrace.databases.postgres.claim._ENDED_TIMEOUT_S", 0.5)
    first, second = claim(source_database, HERE), claim(source_database, THERE)
    with (
        psycopg.connect(source_database, autocommit=True) as user,
        psycopg.connect(source_database, autocommit=True) as observer,
        closing(first),
        closing(second),
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        first.hold()
        waiting = pool.submit(user.execute, "SELECT pg_advisory_lock(%s)", (first._shared_key,))
        query = "SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted"
        wait_until("it waits", lambda: observer.execute(query, (user.info.backend_pid,)).fetchone() == (1,))
        with pytest.raises(DatabaseUnavailable, match=f"session {user.info.backend_pid} "):
            second.hold()
        first.close()
        waiting.result()


def _end_sessions_of_claims(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as user:
        ended = user.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = %s",
            (claim_name("hr"),),
        ).fetchall()
    assert ended == [(True,)]


def test_ended_session_is_not_the_result_of_the_next_call(source_database: str):
    with closing(claim(source_database, HERE)) as first, closing(claim(source_database, THERE)) as second:
        first.hold()
        _end_sessions_of_claims(source_database)
        first.hold()
        with pytest.raises(RunsElsewhere):
            second.hold()


def test_destination_only_site_takes_its_claim_again(
    source_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("DST_DSN", source_database)
    file = tmp_path / "hr.yaml"
    file.write_text(
        "topology: hr\nsites: {src: {database: {kind: embedded}}, dst: {database: {kind: postgres, dsn:"
        " '${DST_DSN}'}}}\nreplicate: [{tables: [public.t], from: src, to: [dst]}]\n",
        encoding="utf-8",
    )
    spec = read_topology(file)
    site = DatabaseSite(spec, "dst", "fingerprint")
    try:
        site.start()
        wait_until("ready", lambda: state(site).ready)
        site.prepare(spec)
        _end_sessions_of_claims(source_database)
        with psycopg.connect(source_database, autocommit=True) as user:
            locked = (
                "SELECT FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND"
                " application_name = %s"
            )
            wait_until("it has it again", lambda: user.execute(locked, (claim_name("hr"),)).rowcount > 0)
        _end_sessions_of_claims(source_database)
        assert site.remove()
    finally:
        site.end()


def test_identical_copies_do_not_take_the_claim_from_each_other_forever(source_database: str):
    with closing(claim(source_database, HERE)) as first, closing(claim(source_database, HERE)) as second:
        first.hold()
        second.hold()
        for _ in range(2):
            with pytest.raises(
                RunsElsewhere, match=r"was started again from machine-a.* in a second copy of the same place"
            ):
                first.hold()
            second.hold()
        first.hold(take_over=True)
        with pytest.raises(RunsElsewhere):
            second.hold()
        first.hold()


def test_takeover_ends_the_other_copy_and_refuses_it_from_then_on(source_database: str):
    with closing(claim(source_database, HERE)) as first, closing(claim(source_database, THERE)) as second:
        first.hold()
        second.hold(take_over=True)
        with pytest.raises(RunsElsewhere, match="from machine-b"):
            first.hold()
        second.hold()


def test_other_topologies_and_sites_of_the_database_do_not_conflict(source_database: str):
    others = [
        PostgresClaim(source_database, topology=topology, site=site, place=HERE, identity="1")
        for topology, site in (("hr", "dbs1"), ("hr", "dbs2"), ("crm", "dbs1"))
    ]
    for other in others:
        other.hold()
    for other in others:
        other.close()


def test_topology_that_calls_the_database_by_another_site_is_refused(source_database: str):
    """The database keeps its records by topology and apply process. Each topology would mark the other's tables as left
    and copy its own again, in turns.
    """

    def site(name: str, place: str) -> PostgresClaim:
        return PostgresClaim(source_database, topology="hr", site=name, place=place, identity="1")

    with (
        closing(site("dbs1", HERE)) as first,
        closing(site("hq", THERE)) as second,
        closing(site("hq", HERE)) as renamed,
    ):
        first.hold()
        with pytest.raises(RunsElsewhere) as refused:
            second.hold()
        assert refused.value.message.startswith(f"a topology hr runs already from {HERE} since 20")
        assert refused.value.message.endswith("and calls this database dbs1 instead of hq")
        assert "another name" in refused.value.hint
        renamed.hold()  # the first one's own edit
        renamed.close()
        first.hold()
        second.hold(take_over=True)
        with pytest.raises(RunsElsewhere, match="calls this database hq instead of dbs1"):
            first.hold()
        second.hold()


def test_refused_copy_holds_no_lock_when_the_refusal_arrives(source_database: str, monkeypatch: pytest.MonkeyPatch):
    """Its session may live on for a moment; here it lives on for long."""

    def site(name: str, place: str) -> PostgresClaim:
        return PostgresClaim(source_database, topology="hr", site=name, place=place, identity="1")

    with (
        closing(site("dbs1", HERE)) as first,
        closing(site("hq", THERE)) as second,
        closing(site("hq", HERE)) as renamed,
    ):
        first.hold()
        with monkeypatch.context() as patch:
            patch.setattr(second, "close", lambda: None)
            with pytest.raises(RunsElsewhere):
                second.hold()
        renamed.hold()


TOPOLOGY = """
topology: copies
sites:
  a: {database: {kind: postgres, dsn: "${CLAIM_DSN}"}}
  b: {database: {kind: embedded}}
replicate:
  - {tables: [public.*], from: a, to: [b]}
"""


@pytest.fixture
def copies(source_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DatabaseSite]]:
    """Yield the sites of two copies of one file, in two folders."""
    monkeypatch.setenv("CLAIM_DSN", source_database)
    hosts = []
    for folder in ("one", "two"):
        file = tmp_path / folder / "copies.yaml"
        file.parent.mkdir()
        file.write_text(TOPOLOGY)
        hosts.append(DatabaseSite(read_topology(file), "a", "fingerprint", loopback()))
    with psycopg.connect(source_database) as user:
        user.execute("CREATE TABLE t (id int PRIMARY KEY)")
    yield hosts
    for host in hosts:
        host.end()


def state(host: DatabaseSite) -> SiteStatus:
    return status_of(host, SiteStatus)


def test_site_of_a_second_copy_is_refused_before_preparation(copies: list[DatabaseSite], source_database: str):
    one, two = copies
    for host in copies:
        host.start()
        wait_until("the database answers", lambda host=host: state(host).ready)
    assert [finding for finding in one.preflight(one._spec) if finding.is_error] == []
    one.prepare(one._spec)
    wait_until("it reads the log", lambda: state(one).state in {"IDLE", "WRITING"})
    opens = state(one).opens_total

    (finding,) = two.preflight(two._spec)
    assert finding.is_error
    assert "topology copies runs already from" in finding.problem
    assert str(one._spec.state_dir) in finding.problem
    for refused in (
        lambda: two.prepare(two._spec),
        two.claimed_dsn,
        two.remove,
        lambda: two.destination.leave_out("x", ()),
        lambda: two.destination.leave_out_others(()),
    ):
        with pytest.raises(RunsElsewhere):
            refused()
    (problem,) = Removal(two._spec, print).from_databases(None)
    assert "runs already from" in problem
    wait_until("the first one reads on", lambda: state(one).state in {"IDLE", "WRITING"}, 60)
    assert state(one).opens_total == opens, "the refused copy disturbed it"

    two.take_over()
    wait_until("the first one gives way", lambda: state(one).state == "ABORTED")
    assert str(two._spec.state_dir) in state(one).last_error.message
    with pytest.raises(RunsElsewhere):
        one.claimed_dsn()
    two.prepare(two._spec)
    wait_until("the second one reads the log", lambda: state(two).state in {"IDLE", "WRITING"})
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    with psycopg.connect(source_database, autocommit=True) as user:
        # The first one's last query may be about to end, and it queries again now and then.
        wait_until(
            "one session is left", lambda: user.execute(sessions, (claim_name("copies"),)).fetchone() == (1,), 60
        )


def test_claim_of_a_state_folder_is_permanent(copies: list[DatabaseSite]):
    specs = [host._spec for host in copies]
    claims = [claim_on(spec, spec.site("a")) for spec in (specs[0], specs[0], specs[1])]
    first, again, other = (claimed._identity for claimed in claims)  # type: ignore[attr-defined]
    assert first == again != other


def _processes() -> set[int]:
    """Return this process's children, and their children."""
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_up_of_a_second_copy_is_refused_before_its_cluster_starts(copies: list[DatabaseSite]):
    one, two = (host._spec for host in copies)
    before = _processes()
    with closing(claim_on(one, one.site("a"))) as running:
        running.hold()
        deployment = Deployment(two)
        try:
            with pytest.raises(TopologyError) as refused:
                deployment.up()
            assert exit_code_of(refused.value) == FINDING
            assert "sites.a" in str(refused.value)
            assert f"topology copies runs already from {socket.gethostname()}:{one.state_dir}" in str(refused.value)
            assert _processes() == before
            assert deployment.cluster.facts() is None
        finally:
            deployment.down()
        running.hold()  # it is not taken


def test_first_claims_end_after_the_clusters_start_and_spare_the_same_copy(copies: list[DatabaseSite]):
    one, two = copies
    with claimed(one._spec), pytest.raises(TopologyError), claimed(two._spec):
        pytest.fail("both have it")
    one.start()
    wait_until("the database answers", lambda: state(one).ready)
    one.prepare(one._spec)
    wait_until("it reads the log", lambda: state(one).state in {"IDLE", "WRITING"})
    opens = state(one).opens_total
    with claimed(one._spec):  # another `up` in its folder, whose record of the cluster is lost
        one.claimed_dsn()
    one.claimed_dsn()
    assert state(one).opens_total == opens
    with pytest.raises(TopologyError), claimed(two._spec):
        pytest.fail("the first one has it")


def test_first_claim_of_an_unreachable_database_is_left_to_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "CLAIM_DSN", f"host=127.0.0.1 port={nobody.getsockname()[1]} dbname=x user=x sslmode=disable"
        )
        (tmp_path / "copies.yaml").write_text(TOPOLOGY)
        entered = []
        with claimed(read_topology(tmp_path / "copies.yaml")):
            entered.append(True)
    assert entered


@pytest.mark.cluster
@pytest.mark.soak  # the refusal without Ray: above
def test_second_copy_starts_nothing_until_the_first_cluster_is_down(
    source_database: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CLAIM_DSN", source_database)
    with (
        system_folder("copies") as folder,
        ExitStack() as stack,
        psycopg.connect(source_database, autocommit=True) as user,
    ):
        user.execute("CREATE TABLE t (id int PRIMARY KEY)")
        deployments = []
        for name in ("one", "two"):
            file = folder / name / "copies.yaml"
            file.parent.mkdir(mode=0o711)
            file.write_text(TOPOLOGY)
            deployments.append(Deployment(read_topology(file)))
            stack.callback(deployments[-1].down, purge=True)
            server = embedded_server(deployments[-1].spec, deployments[-1].spec.site("b"))
            server.start()
            with psycopg.connect(server.dsn(), autocommit=True) as connection:
                connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        one, two = deployments
        note_started("topology")
        assert one.up().state == "RUNNING"
        before = _processes()
        with pytest.raises(TopologyError, match="runs already from"):
            two.up()
        assert _processes() <= before
        assert two.cluster.facts() is None
        assert one.up().state == "RUNNING"
        assert one.down(purge=True) == []
        assert two.up().state == "RUNNING"
