"""A Spark driver applies the changes of a real stream through any kill; instantiation, comparison, control, fencing."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from headrace.base.errors import FencedError, ProtocolError
from headrace.faults.processes import executor_of, kill
from protos import apply_pb2 as pb
from tests.fix_apply_driver import TABLES
from tests.support.apply.apply_driver import ENDED_S, STARTED_S, ApplyDrivers, Driver, end_of_log, load, wait_for
from tests.support.clusters.spark_health import fetch_health
from tests.support.databases.statements import digest, execute
from tests.support.session.background import in_background

pytestmark = [pytest.mark.unit("drivers"), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture(scope="module")
def drivers(make_drivers: Callable[[str], ApplyDrivers]) -> ApplyDrivers:
    return make_drivers("apply_test")


@pytest.fixture
def driver(drivers: ApplyDrivers) -> Driver:
    """Yield the running driver, with `notes` empty at both sides; after a test that ended it, the next one gets a new
    driver.
    """
    running = [each for each in drivers.started if each.is_alive]
    found = running[-1] if running else drivers.start()
    found.wait_ready()
    if execute(drivers.queue.source_dsn, "DELETE FROM notes RETURNING 1"):  # rows of a failed test
        found.wait_applied(end_of_log(drivers.queue.source_dsn))
    return found


def assert_same(drivers: ApplyDrivers, driver: Driver) -> None:
    queue = drivers.queue
    driver.wait_applied(end_of_log(queue.source_dsn))
    for table in TABLES:
        assert digest(queue.source_dsn, table) == digest(queue.destination_dsn, table), table
    assert execute(queue.destination_dsn, "SELECT * FROM headrace.apply_error") == []
    sums = execute(
        queue.destination_dsn,
        "SELECT (SELECT coalesce(sum(delta), 0) FROM history), (SELECT sum(balance) FROM branches)",
    )[0]
    assert sums[0] == sums[1]


def test_nothing_is_copied_before_the_queue_reports_where_its_lcrs_begin(drivers: ApplyDrivers):
    """Otherwise no queue would keep commits between the copy and the first dequeue."""
    driver = drivers.start(queue_endpoint="127.0.0.1:9")
    wait_for("the driver to miss its queue", lambda: "127.0.0.1:9" in driver.status().detail, STARTING_S)
    assert driver.status().state == "INITIALIZING"
    assert execute(drivers.queue.destination_dsn, "SELECT count(*) FROM headrace.instantiation") == [(0,)]
    driver.kill()


def test_tables_are_copied_under_load_and_changes_follow_without_a_gap(drivers: ApplyDrivers):
    """Writers run before, during and after the snapshot: a lost or duplicate row at its border would show."""
    with load(drivers.queue.source_dsn, clients=3, duration_s=STARTING_S) as counts:
        driver = drivers.start()
        driver.wait_ready()
        time.sleep(1.0)
        wait_for("a hundred transactions", lambda: counts["transactions"] > 100, STARTING_S)
    assert_same(drivers, driver)
    recorded = execute(
        drivers.queue.destination_dsn,
        "SELECT name, state, scn > 0, digest <> '' FROM headrace.instantiation ORDER BY name",
    )
    assert recorded == [(name, "DONE", True, True) for name in sorted(TABLES)]
    status = driver.status()
    assert {table.state for table in status.instantiation} == {"DONE"}
    # The stream began before the snapshot, so some of its changes were in the copy.
    assert status.counters["rows_instantiated"] > 0


STARTING_S = 240.0  # longer than a driver and an application take to start on a busy machine


def test_copied_and_applied_changes_are_captured_there_only_with_a_tag(drivers: ApplyDrivers, driver: Driver):
    origins = execute(
        drivers.queue.destination_dsn,
        "SELECT roname FROM pg_replication_origin WHERE roname LIKE 'headrace:apply_test/%'",
    )
    assert {name for (name,) in origins} == {
        f"headrace:apply_test/{drivers.config.apply}/{server}:00" for server in range(2)
    }
    driver.wait_ready()


@pytest.mark.soak
def test_every_kind_of_change_arrives(drivers: ApplyDrivers, driver: Driver):
    source = drivers.queue.source_dsn
    with load(source, clients=3, duration_s=STARTING_S) as counts:  # rows of `history`
        wait_for("a hundred transactions", lambda: counts["transactions"] > 100, STARTING_S)
    execute(source, "INSERT INTO notes SELECT n, repeat('x', n) FROM generate_series(1, 3000) n")
    execute(source, "UPDATE notes SET body = NULL WHERE id % 3 = 0")
    execute(source, "UPDATE notes SET id = id + 10000 WHERE id % 7 = 0")
    execute(source, "DELETE FROM notes WHERE id % 5 = 0")
    execute(source, "UPDATE history SET client = client + 1 WHERE number % 2 = 0")
    assert_same(drivers, driver)
    execute(source, "TRUNCATE notes")
    assert_same(drivers, driver)


def test_value_larger_than_every_message_bound_arrives(drivers: ApplyDrivers, driver: Driver):
    execute(drivers.queue.source_dsn, "INSERT INTO notes VALUES (1, repeat('0123456789abcdef', 4 << 20))")  # 64 MiB
    assert_same(drivers, driver)
    execute(drivers.queue.source_dsn, "DELETE FROM notes")
    assert_same(drivers, driver)


IDLE_ROUNDS = 12  # if the product waited for something, no round would be fast


def test_change_is_visible_within_a_second_of_its_commit_when_idle(drivers: ApplyDrivers, driver: Driver):
    """Half of them, in one of several rounds: a machine with other load may take longer for a while."""

    def is_there(number: int) -> bool:
        return execute(drivers.queue.destination_dsn, "SELECT 1 FROM notes WHERE id = %s", number) != []

    rounds: list[list[float]] = []
    while len(rounds) < IDLE_ROUNDS and not (rounds and statistics.median(rounds[-1]) < 1.0):
        rounds.append([])
        for number in range(len(rounds) * 10, len(rounds) * 10 + 10):
            execute(drivers.queue.source_dsn, "INSERT INTO notes VALUES (%s, 'latency')", number)
            start = time.monotonic()
            wait_for("the row", partial(is_there, number), ENDED_S)
            rounds[-1].append(time.monotonic() - start)
    execute(drivers.queue.source_dsn, "DELETE FROM notes")
    assert statistics.median(rounds[-1]) < 1.0, rounds


def test_native_libraries_are_in_the_folders_of_application_and_cluster(drivers: ApplyDrivers, driver: Driver):
    """Ray's own folder for them, /tmp/ray, may belong to another user, and is never cleaned."""
    driver.wait_ready()
    scratch = Path(drivers.spark.config.state_dir) / "spark" / str(drivers.spark.child.pid)
    ours = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "java"
        and any(
            str(scratch) in word or drivers.spark.config.ray_address in word for word in process.info["cmdline"] or ()
        )
    ]
    libraries = {
        Path(mapped.path)
        for process in ours
        for mapped in mapped_files(process)
        if "core_worker_library_java" in mapped.path
    }
    assert any(library.is_relative_to(scratch) for library in libraries)  # the application master's
    assert not any(library.is_relative_to("/tmp/ray") for library in libraries)


def mapped_files(process: psutil.Process) -> list[Any]:
    try:
        return list(process.memory_maps())
    except psutil.Error:
        return []  # just ended


@pytest.mark.soak
@pytest.mark.fault("SIGKILL of a Python worker, and of an executor's JVM")
@pytest.mark.parametrize("victim", ["worker", "executor", "both executors"])
def test_killed_task_is_run_again_without_loss_or_duplicates(drivers: ApplyDrivers, driver: Driver, victim: str):
    with load(drivers.queue.source_dsn, clients=3, duration_s=STARTING_S):
        time.sleep(0.5)
        before = driver.wait_ready()
        pids = driver.server_pids()
        attempts = sum(server.attempts for server in before.servers)
        workers = [psutil.Process(pid) for pid in pids]
        executors = sorted({executor_of(worker) for worker in workers}, key=lambda executor: executor.pid)
        kill({"worker": workers[:1], "executor": executors[:1], "both executors": executors}[victim])
        wait_for(
            "a new attempt", lambda: sum(server.attempts for server in driver.status().servers) > attempts, STARTED_S
        )
        driver.wait_ready()
        time.sleep(0.5)
    assert set(driver.server_pids()) != set(pids)
    assert_same(drivers, driver)


@pytest.mark.fault("SIGKILL of the driver")
def test_killed_driver_takes_its_tasks_with_it_and_the_next_one_resumes(drivers: ApplyDrivers, driver: Driver):
    with load(drivers.queue.source_dsn, clients=3, duration_s=STARTING_S):
        time.sleep(0.5)
        workers = [psutil.Process(pid) for pid in driver.server_pids()]
        application, executors = drivers.spark.child.pid, [executor_of(worker) for worker in workers]
        driver.kill()
        _, alive = psutil.wait_procs(workers, timeout=ENDED_S)
        assert alive == []
        wait_for("its job to be cancelled", lambda: drivers.spark.health().runs == 0, ENDED_S)
        after = drivers.start()
        after.wait_ready()
        assert all(executor.is_running() for executor in executors)
        assert drivers.spark.child.pid == application
    assert_same(drivers, after)
    assert after.status().epoch > 1


@pytest.mark.soak
@pytest.mark.fault("SIGKILL of the application's process")
def test_killed_application_takes_its_processes_with_it_and_is_replaced(drivers: ApplyDrivers, driver: Driver):
    """Its endpoint is a new one, which an actor would report; here a second application takes over the first one's
    tasks.
    """
    epoch = driver.wait_ready().epoch
    workers = [psutil.Process(pid) for pid in driver.server_pids()]
    jvms = [executor_of(worker) for worker in workers]
    with load(drivers.queue.source_dsn, clients=3, duration_s=STARTING_S):
        time.sleep(0.5)
        kill([psutil.Process(drivers.spark.child.pid)])
        _, alive = psutil.wait_procs([*workers, *jvms], timeout=ENDED_S)
        assert alive == []
        wait_for("why nothing is applied", lambda: "Spark application" in driver.status().detail, ENDED_S)
        drivers.spark.start()
        driver.client.ask("moved_to", drivers.spark.access)
        driver.wait_ready()
    assert_same(drivers, driver)
    assert driver.status().epoch == epoch


@pytest.mark.soak
@pytest.mark.fault("two live drivers")
def test_older_of_two_live_drivers_is_fenced_out(drivers: ApplyDrivers, driver: Driver):
    newer = drivers.start()
    newer.wait_ready()
    execute(drivers.queue.source_dsn, "INSERT INTO notes VALUES (1, 'to whom?')")
    assert isinstance(driver.wait_failure(), FencedError)
    driver.kill()
    assert_same(drivers, newer)
    execute(drivers.queue.source_dsn, "DELETE FROM notes")


def test_comparison_finds_the_table_that_differs(drivers: ApplyDrivers, driver: Driver):
    assert_same(drivers, driver)
    found = {each.name: each for each in driver.client.compare(pb.CompareRequest())}
    assert {name: each.equal for name, each in found.items()} == dict.fromkeys(TABLES, True)
    assert found["accounts"].source_rows == 20_000
    execute(drivers.queue.destination_dsn, "UPDATE accounts SET balance = balance + 1 WHERE id = 17")
    only = pb.CompareRequest(tables=[pb.TableName(owner="public", name="accounts")], rechecks=1, recheck_delay_s=0.1)
    (different,) = driver.client.compare(only)
    assert not different.equal
    assert [(list(each.values), each.what) for each in different.differences] == [(["17"], "differs")]
    assert different.source_rows == different.destination_rows
    assert different.source_digest != different.destination_digest
    execute(drivers.queue.destination_dsn, "UPDATE accounts SET balance = balance - 1 WHERE id = 17")
    assert [each.equal for each in driver.client.compare(only)] == [True]
    (unknown,) = driver.client.compare(pb.CompareRequest(tables=[pb.TableName(owner="public", name="unknown")]))
    assert unknown.problem


@contextlib.contextmanager
def applied_late(dsn: str) -> Iterator[None]:
    """Write to `history` only once a second."""

    def hold(ended: threading.Event) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not ended.is_set():
                with connection.transaction():
                    connection.execute("LOCK TABLE history IN SHARE MODE")
                    connection.execute("SELECT pg_sleep(1)")
                time.sleep(0.05)

    with in_background(hold):
        yield


@pytest.mark.soak
def test_constantly_written_tables_compare_as_identical_or_differing(drivers: ApplyDrivers, driver: Driver):
    """`history` grows, and is always up to a second late; each transaction writes one of the few rows of `branches`."""
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    execute(source, "INSERT INTO notes SELECT n, 'to compare' FROM generate_series(1, 3) n")
    driver.wait_applied(end_of_log(source))
    request = pb.CompareRequest(rechecks=3, recheck_delay_s=0.2)
    with applied_late(destination), load(source, clients=3, duration_s=STARTING_S) as counts:
        wait_for("a hundred transactions", lambda: counts["transactions"] > 100, STARTING_S)
        found = {each.name: each for each in driver.client.compare(request)}
        execute(destination, "UPDATE notes SET body = 'by hand' WHERE id = 2")
        again = {each.name: each for each in driver.client.compare(request)}
        written = counts["transactions"]
        wait_for("the load, which wrote all the time", lambda: counts["transactions"] > written, STARTED_S)
    execute(source, "DELETE FROM notes")
    assert {name: (each.equal, each.problem) for name, each in found.items()} == dict.fromkeys(TABLES, (True, ""))
    assert found["history"].settled > 0
    assert [name for name, each in again.items() if not each.equal] == ["notes"]
    assert [(list(each.values), each.what) for each in again["notes"].differences] == [(["2"], "differs")]
    assert_same(drivers, driver)


@pytest.mark.soak
def test_error_transaction_is_executed_or_deleted_on_request(drivers: ApplyDrivers, driver: Driver):
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    execute(destination, "INSERT INTO notes VALUES (1, 'in the way'), (2, 'in the way')")
    execute(source, "INSERT INTO notes VALUES (1, 'one')")
    execute(source, "INSERT INTO notes VALUES (2, 'two')")
    execute(source, "INSERT INTO notes VALUES (3, 'independent')")
    driver.wait_applied(end_of_log(source))
    assert execute(destination, "SELECT body FROM notes WHERE id = 3") == [("independent",)]
    numbers = [number for (number,) in execute(destination, "SELECT number FROM headrace.apply_error ORDER BY 1")]
    assert len(numbers) == 2
    (refused,) = driver.client.execute_errors(pb.ErrorsRequest(numbers=numbers[:1]))
    assert not refused.done
    execute(destination, "DELETE FROM notes WHERE id = 1")
    (done,) = driver.client.execute_errors(pb.ErrorsRequest(numbers=numbers[:1]))
    assert done.done
    assert execute(destination, "SELECT body FROM notes WHERE id = 1") == [("one",)]
    assert [each.done for each in driver.client.delete_errors(pb.ErrorsRequest(all=True))] == [True]
    execute(destination, "UPDATE notes SET body = 'two' WHERE id = 2")
    assert_same(drivers, driver)
    execute(source, "DELETE FROM notes")


def test_secrets_appear_in_no_command_line_environment_or_log(drivers: ApplyDrivers, driver: Driver):
    password = drivers.queue.source_dsn.partition("password=")[2].split()[0]
    family = [
        driver.process.pid,
        drivers.spark.child.pid,
        *driver.server_pids(),
        *(executor_of(psutil.Process(pid)).pid for pid in driver.server_pids()),
    ]
    for pid in family:
        for name in ("cmdline", "environ"):
            assert password not in Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace"), name
    assert password not in driver.log.read_text() + drivers.spark.log.read_text()


def test_caller_without_a_runs_token_learns_nothing(drivers: ApplyDrivers, driver: Driver):
    from protos.links.apply_link import fetch_access

    driver.wait_ready()
    ports = [
        each.laddr.port
        for each in psutil.Process(driver.process.pid).net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    ]
    assert ports
    with pytest.raises(ProtocolError):
        fetch_access(f"127.0.0.1:{ports[0]}", "a guess")
    with pytest.raises(ProtocolError):
        fetch_health(drivers.spark.access.endpoint, "a guess")


def test_driver_stops_in_order_on_request(drivers: ApplyDrivers, driver: Driver):
    driver.wait_applied(end_of_log(drivers.queue.source_dsn))
    assert driver.stop() == 0
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'headrace apply_test/%'"
    wait_for("its sessions to be gone", lambda: execute(drivers.queue.destination_dsn, sessions) == [(0,)], ENDED_S)
    wait_for("its job to have ended", lambda: drivers.spark.health().runs == 0, ENDED_S)


_CHANGED = """
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN IF NEW.id = 17 THEN NEW.balance := NEW.balance + 1; END IF; RETURN NEW; END';
CREATE TRIGGER change BEFORE INSERT ON accounts FOR EACH ROW EXECUTE FUNCTION change();
ALTER TABLE accounts ENABLE ALWAYS TRIGGER change
"""


def test_filled_or_differing_table_is_refused_until_corrected(make_drivers: Callable[[str], ApplyDrivers]):
    drivers = make_drivers("apply_existing")
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    execute(destination, "INSERT INTO notes VALUES (1, 'the user''s own'); INSERT INTO branches VALUES (1, 5)")
    execute(destination, _CHANGED)
    tables = drivers.queue.tables(TABLES, keep_existing=set(TABLES) - {"notes"})
    driver = drivers.start(tables=tables)

    def refused() -> dict[str, str]:
        found = {table.name: table.problem for table in driver.status().instantiation if table.state == "FAILED"}
        return found if len(found) > 1 else {}

    problems = wait_for("the refusals", refused, STARTED_S)
    assert sorted(problems) == ["accounts", "notes"]
    assert "not empty" in problems["notes"]
    assert "the copy differs: 20000 rows at the source, 20000 at the destination" in problems["accounts"]
    assert "remove whatever changes its rows at the destination" in problems["accounts"]
    assert execute(destination, "SELECT * FROM notes") == [(1, "the user's own")]
    assert not driver.status().ready
    execute(destination, "DROP TRIGGER change ON accounts; DELETE FROM notes")
    driver.wait_ready()
    states = dict(execute(destination, "SELECT name, state FROM headrace.instantiation"))
    assert states == {"accounts": "DONE", "branches": "KEPT", "history": "DONE", "notes": "DONE"}
    assert digest(destination, "accounts") == digest(source, "accounts")
    assert execute(destination, "SELECT * FROM branches") == [(1, 5)]
    execute(source, "INSERT INTO notes VALUES (2, 'after')")
    driver.wait_applied(end_of_log(source))
    assert execute(destination, "SELECT * FROM notes") == [(2, "after")]


_ODD_TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (left_mood mood, right_number numeric);
CREATE TABLE parts (id integer, day date, body text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE parts_old PARTITION OF parts FOR VALUES FROM (MINVALUE) TO ('2026-01-01');
CREATE TABLE parts_new PARTITION OF parts FOR VALUES FROM ('2026-01-01') TO (MAXVALUE) PARTITION BY HASH (id);
CREATE TABLE parts_new_0 PARTITION OF parts_new FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE parts_new_1 PARTITION OF parts_new FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE computed (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a integer, b integer GENERATED ALWAYS AS (a * 2) STORED);
CREATE TABLE twins (a integer, b text);
CREATE TABLE moods (id integer PRIMARY KEY, one mood, many mood[], together pair, relation regclass);
CREATE TABLE "Odd Name" ("Odd ""Column" integer PRIMARY KEY, "order" text);
CREATE TABLE parent (id integer PRIMARY KEY);
CREATE TABLE child (id integer PRIMARY KEY REFERENCES parent)
"""
_ODD_ROWS = """
INSERT INTO parts SELECT i, date '2025-06-01' + i % 400, repeat('x', i % 3000) FROM generate_series(1, 5000) i;
INSERT INTO computed (a) SELECT i FROM generate_series(1, 100) i;
DELETE FROM computed WHERE id % 3 = 0;
INSERT INTO twins SELECT i % 3, NULL FROM generate_series(1, 100) i;
INSERT INTO moods SELECT i, 'ok', ARRAY['sad', NULL, 'ok']::mood[], ROW('sad', 'NaN')::pair, 'pg_class' FROM generate_series(1, 10) i;
INSERT INTO "Odd Name" VALUES (1, E'tab\there'), (2, NULL), (3, '');
INSERT INTO parent VALUES (1), (2);
INSERT INTO child VALUES (1)
"""
_ODD = ("parts", "computed", "twins", "moods", "Odd Name", "child", "parent")


def test_tables_of_every_kind_are_copied_completely(make_drivers: Callable[[str], ApplyDrivers]):
    """Partitions cut differently, computed and identity columns, no key, types that binary COPY refuses, foreign keys."""
    drivers = make_drivers("apply_odd")
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    for dsn in (source, destination):
        execute(dsn, _ODD_TABLES)
    execute(source, _ODD_ROWS)
    driver = drivers.start(tables=drivers.queue.tables(_ODD))
    driver.wait_ready()
    for name in _ODD:
        assert digest(source, f'"{name}"') == digest(destination, f'"{name}"'), name
        assert digest(destination, f'"{name}"')[0] > 0, name
    assert {each.equal for each in driver.client.compare(pb.CompareRequest())} == {True}


@pytest.mark.soak
@pytest.mark.fault("SIGKILL of a copying task, then of the driver")
def test_interrupted_copy_is_repeated_and_finished_tables_are_kept(make_drivers: Callable[[str], ApplyDrivers]):
    drivers = make_drivers("apply_interrupted")
    source, destination = drivers.queue.source_dsn, drivers.queue.destination_dsn
    execute(source, "INSERT INTO notes SELECT n, repeat(md5(n::text), 100) FROM generate_series(1, 60000) n")
    driver = drivers.start()

    def copying() -> list[psutil.Process]:
        # A worker within its COPY holds its session's transaction open.
        busy = execute(
            destination,
            (
                "SELECT 1 FROM pg_stat_activity WHERE application_name LIKE 'headrace apply_interrupted/%' AND query"
                " LIKE 'COPY%notes%' AND state = 'active'"
            ),
        )
        return workers_of(drivers) if busy else []

    victims = wait_for("a running copy", copying, STARTED_S)
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):  # one that had nothing to do may have ended
            victim.kill()
    done = "SELECT name, scn FROM headrace.instantiation WHERE state = 'DONE'"
    finished = wait_for("finished tables", lambda: dict(execute(destination, done)), STARTED_S)
    if "notes" not in finished:
        driver.kill()
    after = drivers.start()
    after.wait_ready()
    assert_same_tables(drivers, after)
    scns = dict(execute(destination, "SELECT name, scn FROM headrace.instantiation"))
    assert {name: scns[name] for name in finished} == finished


def workers_of(drivers: ApplyDrivers) -> list[psutil.Process]:
    """Return the Python workers of this Ray's executors: children of a daemon whose parent is such a JVM."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"-Dray.address={drivers.spark.config.ray_address}" in process.cmdline():
                found += [worker for daemon in process.children() for worker in daemon.children()]
        except psutil.Error:
            continue
    return found


def assert_same_tables(drivers: ApplyDrivers, driver: Driver) -> None:
    driver.wait_applied(end_of_log(drivers.queue.source_dsn))
    for table in TABLES:
        assert digest(drivers.queue.source_dsn, table) == digest(drivers.queue.destination_dsn, table), table
