"""The host and its apply servers: tasks that are killed, freeze, fail or are unknown."""

from __future__ import annotations

import random

import pytest

from headrace.base.errors import (
    ApplyError,
    FencedError,
    PropagationError,
    ProtocolError,
)
from headrace.databases.memory.destination import MemoryDestination
from headrace.lcr.scn import Scn
from protos import apply_pb2 as pb
from spark_apply.application.spark import SparkUnavailable
from spark_apply.driver import server_streams as servers_module
from spark_apply.driver.control import ApplyControl, Cores
from tests.support.apply.apply_engine import APPLY, TOPOLOGY
from tests.support.apply.hosted_driver import Driver, Stream
from tests.support.session.seeds import seeds


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("histories of a driver", test=4, soak=40))
def test_killed_task_with_groups_is_replaced_without_loss_or_duplicates(seed: int) -> None:
    driver = Driver(seed=seed, count=20)
    for number in range(2):
        driver.start_task(number)
    rng = random.Random(seed)
    for _ in range(6):
        for _ in range(rng.randrange(1, 4)):
            driver.host.turn(0.0)
            driver.step_task(rng.randrange(2))
        victim = rng.randrange(2)
        old = driver.tasks[victim][0]
        if rng.random() < 0.5:
            driver.gate.lost(old, "killed")
        driver.start_task(victim)
        assert old.is_closed or driver.host.servers.facts()[victim].attempts >= 2
    driver.run()
    driver.assert_applied()


def test_apply_server_can_reuse_the_number_of_a_copying_session(driver: Driver) -> None:
    copies = MemoryDestination(store=driver.store)
    copies.open_session(TOPOLOGY, APPLY, server=0, epoch=driver.epoch, tag=b"", incarnation=99).close()
    driver.start_task(0)
    driver.run()
    driver.assert_applied()


def test_messages_of_a_replaced_stream_are_ignored(driver: Driver) -> None:
    old = driver.start_task(0)
    driver.start_task(0)
    driver.gate.receive(old, pb.ServerMessage(failure=pb.ServerFailure(message="of the old one", final=True)))
    driver.gate.lost(old, "late")
    driver.host.turn(0.0)
    assert driver.host.servers.facts()[0].has_joined


def test_fenced_server_ends_the_driver(driver: Driver) -> None:
    stream = driver.start_task(0)
    driver.gate.receive(stream, pb.ServerMessage(failure=pb.ServerFailure(message="newer epoch", fenced=True)))
    with pytest.raises(FencedError):
        driver.host.turn(0.0)


def test_replaced_task_that_resumes_leaves_its_successors_session_intact(driver: Driver) -> None:
    driver.start_task(0)
    frozen = driver.tasks[0][1]
    driver.start_task(0)
    frozen.close()
    with pytest.raises(FencedError):
        frozen.connect()
    driver.start_task(1)
    driver.run()
    driver.assert_applied()


def test_repeatedly_failing_server_ends_the_driver(driver: Driver) -> None:
    failure = pb.ServerMessage(failure=pb.ServerFailure(error="BugError", message="a defect"))
    for _ in range(servers_module.FAILURES_MAX - 1):
        driver.gate.receive(driver.start_task(0), failure)
        driver.host.turn(0.0)
    driver.gate.receive(driver.start_task(0), failure)
    with pytest.raises(ApplyError, match="a defect"):
        driver.host.turn(0.0)


def test_server_process_grown_by_handlers_is_replaced_any_number_of_times(driver: Driver) -> None:
    failure = pb.ServerMessage(
        failure=pb.ServerFailure(error="HandlersGrew", message="own:run has left 65 threads running", replaced=True)
    )
    for _ in range(2 * servers_module.FAILURES_MAX):
        driver.gate.receive(driver.start_task(0), failure)
        driver.host.turn(0.0)


def test_reason_of_a_server_replacement_is_shown_for_a_day(driver: Driver) -> None:
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    failure = pb.ServerMessage(
        failure=pb.ServerFailure(error="HandlersGrew", message="own:run has left 65 threads running", hint="end them")
    )
    stream = driver.start_task(0)
    driver.run()
    driver.gate.receive(stream, failure)
    driver.gate.lost(stream, "its task ended")
    driver.host.turn(0.0)
    driver.start_task(0)
    driver.run()
    status = control._read(cores)
    assert (status.detail, status.hint) == (
        "apply server 0 was replaced: own:run has left 65 threads running",
        "end them",
    )
    driver.clock.advance(servers_module.FAILURE_TOLD_S)
    assert control._read(cores).detail == ""


def test_long_retrying_server_is_reported_while_it_lasts(driver: Driver) -> None:
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    stream = driver.start_task(0)
    driver.run()

    def told_after(seconds: float, state: str) -> tuple[str, str]:
        driver.clock.advance(seconds)
        told = pb.ServerState(state=state, detail="writing: lock timeout", has_session=True)
        driver.gate.receive(stream, pb.ServerMessage(state=told))
        driver.host.turn(0.0)
        status = control._read(cores)
        return status.detail, status.hint

    assert told_after(0.0, "ROLLBACK TRANSACTION") == ("", "")
    assert told_after(servers_module.FAILING_TOLD_S - 1.0, "ROLLBACK TRANSACTION") == ("", "")
    detail, hint = told_after(1.0, "ROLLBACK TRANSACTION")
    assert detail == "apply server 0 fails and tries again: writing: lock timeout"
    assert "continues by itself" in hint
    assert told_after(1.0, "IDLE") == ("", "")
    assert told_after(servers_module.FAILING_TOLD_S, "ROLLBACK TRANSACTION") == ("", "")


def test_pause_of_a_server_is_the_state_of_the_apply_process(driver: Driver) -> None:
    """Nothing is applied: a status of APPLYING would hide it."""
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    stream = driver.start_task(0)
    driver.run()
    state = "PAUSED: WAITING FOR ALTER"
    told = pb.ServerState(state=state, detail="ALTER TABLE of t: rows have NULLs", hint="repair", has_session=True)
    driver.gate.receive(stream, pb.ServerMessage(state=told))
    driver.host.turn(0.0)
    status = ApplyControl(config=driver.config, cores=cores)._read(cores)
    assert (status.state, status.detail, status.hint) == (
        state,
        "apply server 0: ALTER TABLE of t: rows have NULLs",
        "repair",
    )


def test_pause_stays_shown_until_something_is_applied(driver: Driver) -> None:
    """The server forgets it two seconds later, and the transaction may take longer to come again."""
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    stream = driver.start_task(0)
    driver.run()

    def told(state: str, detail: str = "") -> tuple[str, str, str]:
        said = pb.ServerState(state=state, detail=detail, hint="repair" if detail else "", has_session=True)
        driver.gate.receive(stream, pb.ServerMessage(state=said))
        driver.host.turn(0.0)
        status = control._read(cores)
        return status.state, status.detail, status.hint

    first = told("PAUSED: WAITING FOR ALTER", "DROP TABLE of t: a view depends on it")
    assert told("IDLE") == first
    assert told("EXECUTE TRANSACTION") == first
    second = told("PAUSED: WAITING FOR ALTER", "CREATE TABLE of t: the name is taken")
    assert "the name is taken" in second[1]
    assert told("IDLE") == second
    driver.coordinator.watermarks.low = Scn(driver.coordinator.watermarks.low + 1)
    assert told("IDLE") == ("IDLE", "", "")


def test_ddl_that_waits_for_a_lock_is_reported_at_once(driver: Driver) -> None:
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    stream = driver.start_task(0)
    driver.run()
    told = pb.ServerState(state="EXECUTE TRANSACTION", detail="ALTER TABLE: lock timeout", has_session=True)
    driver.gate.receive(stream, pb.ServerMessage(state=told))
    driver.host.turn(0.0)
    control = ApplyControl(config=driver.config, cores=cores)
    assert control._read(cores).detail == ""
    driver.coordinator.ddl_retried_by = 0
    assert control._read(cores).detail == "apply server 0 fails and tries again: ALTER TABLE: lock timeout"


def test_task_that_does_not_return_ends_the_driver(driver: Driver) -> None:
    driver.start_task(0)
    driver.start_task(1)
    driver.run()
    driver.host.servers.accepted(is_accepted=True)
    driver.gate.lost(driver.tasks[1][0], "executor killed")
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.REGISTER_TIMEOUT_S + 1)
    with pytest.raises(SparkUnavailable, match="did not start"):
        driver.host.turn(0.0)


def test_tasks_without_a_running_application_are_awaited(driver: Driver) -> None:
    driver.start_task(0)
    driver.start_task(1)
    driver.run()
    driver.host.servers.accepted(is_accepted=False)
    for number in range(2):
        driver.gate.lost(driver.tasks[number][0], "the application was killed")
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.REGISTER_TIMEOUT_S + 1)
    driver.host.turn(0.0)
    driver.host.servers.accepted(is_accepted=True)
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.REGISTER_TIMEOUT_S - 1)
    driver.host.turn(0.0)
    driver.clock.advance(2)
    with pytest.raises(SparkUnavailable, match="did not start"):
        driver.host.turn(0.0)


def test_task_of_an_ended_run_is_rejected_and_one_of_the_next_is_accepted(driver: Driver) -> None:
    driver.start_task(0)
    older, driver.token = driver.token, driver.gate.tokens.admit()
    driver.gate.tokens.dismiss(older)
    with pytest.raises(PropagationError):
        driver.gate.accept(Stream(0, token=older))
    with pytest.raises(PropagationError):
        driver.gate.access(pb.AccessRequest(token=older))
    driver.start_task(0)


def test_silent_server_with_permission_to_write_ends_the_driver(driver: Driver) -> None:
    driver.start_task(0)
    driver.start_task(1)
    driver.host.turn(0.0)
    driver.host.turn(0.0)
    driver.clock.advance(servers_module.PROGRESS_TIMEOUT_S + 1)
    with pytest.raises(SparkUnavailable, match="no server reported"):
        driver.host.turn(0.0)


@pytest.mark.parametrize("stream", [Stream(token="a guess"), Stream(apply="another"), Stream(7)])
def test_server_with_a_wrong_token_is_refused(driver: Driver, stream: Stream) -> None:
    with pytest.raises(ProtocolError):
        driver.gate.accept(stream)


def test_database_access_is_given_only_to_callers_with_the_token(driver: Driver) -> None:
    with pytest.raises(ProtocolError):
        driver.gate.access(pb.AccessRequest(token="a guess"))
    assert driver.gate.access(pb.AccessRequest(token=driver.token)).source.dsn == "secret-source"


def test_drained_host_assigns_nothing_and_reports_when_no_server_writes(driver: Driver) -> None:
    driver.start_task(0)
    driver.host.turn(0.0)
    driver.host.drain()
    assert driver.coordinator.state == "SHUTTING DOWN CLEANLY"
    for _ in range(10):
        driver.step_task(0)
        driver.host.turn(0.0)
    assert driver.host.is_drained()
    applied = driver.coordinator.watermarks.low
    for _ in range(5):
        driver.host.turn(0.0)
        driver.step_task(0)
    assert driver.coordinator.watermarks.low == applied < driver.batches[-1].through_scn


def test_status_shows_why_a_server_returns_its_groups(driver: Driver) -> None:
    """For example, a function that an ALTER needs fails: the table fits but cannot be written."""
    stream = driver.start_task(0)
    cores = Cores(host=driver.host, reader=driver.host._reader, coordinator=driver.coordinator, epoch=driver.epoch)
    control = ApplyControl(config=driver.config, cores=cores)
    for state, detail, expected in (
        ("PAUSED: WAITING FOR ALTER", "type mood does not exist", "apply server 0: type mood does not exist"),
        ("IDLE", "a lock time-out, over since", ""),
    ):
        told = pb.ServerState(state=state, detail=detail, has_session=True)
        driver.gate.receive(stream, pb.ServerMessage(state=told))
        driver.host.turn(0.0)
        assert control._read(cores).detail == expected


def test_server_reports_the_server_it_waits_for(driver: Driver) -> None:
    seen = set()
    for number in range(2):
        driver.start_task(number)
    for _ in range(300):
        driver.host.turn(0.0)
        for number in range(2):
            found = driver.coordinator.dependency_of(number)
            if found["dep_group_number"]:
                assert found["dep_group_number"] < found["group_number"]
                assert 0 < found["dep_commitscn"] < found["commitscn"]
                seen.add(found["dep_server_id"])
        for number in driver.tasks:
            driver.step_task(number)
        if driver.coordinator.watermarks.low >= driver.batches[-1].through_scn:
            break
    assert seen
