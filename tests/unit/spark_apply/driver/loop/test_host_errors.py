"""Execution, editing and deletion of error transactions while the host works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from headrace.base.errors import (
    ApplyError,
    DatabaseUnavailable,
)
from headrace.databases.memory.destination import MemoryDestination
from headrace.databases.ports import ErrorEdit
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, RowGroup, TableVersion
from headrace.lcr.scn import Scn
from protos import codec
from spark_apply.driver.groups.executions import ExecutionRequest
from spark_apply.driver.loop.view_writer import DESCRIBE_INTERVAL_S
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.hosted_driver import Driver
from tests.support.databases.destination_contract import error_transaction
from tests.support.values.lcr_batches import column_values, transactions


def test_two_executions_of_one_error_both_get_its_outcome(driver: Driver) -> None:
    first, second = driver.host.errors.execute([7]), driver.host.errors.execute([7])
    assert driver.host.errors.delete([6, 7]) == {
        6: "it is not in the error queue",
        7: "it is being executed: look again with `headrace errors list`",
    }
    for number in range(2):
        driver.start_task(number)
    driver.run()
    assert [each.get_nowait().number for each in (first, second)] == [7, 7]
    third = driver.host.errors.execute([7])
    driver.host.run(lambda: True)
    outcome = third.get_nowait()
    assert outcome.failure is not None
    assert "ended while" in outcome.failure.message


@pytest.mark.parametrize(
    "other", [ExecutionRequest(role="clerk"), ExecutionRequest(handler=b"mend:skip_it")], ids=["role", "function"]
)
def test_execution_with_other_options_does_not_get_the_running_outcome(driver: Driver, other: ExecutionRequest) -> None:
    first, second = driver.host.errors.execute([7]), driver.host.errors.execute([8, 7], other)
    refused = second.get_nowait()
    assert (
        refused.number,
        refused.failure is not None and "with another role or function" in refused.failure.message,
    ) == (7, True)
    for number in range(2):
        driver.start_task(number)
    driver.run()
    assert (first.get_nowait().number, second.get_nowait().number, first.empty(), second.empty()) == (7, 8, True, True)
    third = driver.host.errors.execute([7], other)
    driver.run()
    assert third.get_nowait().number == 7


def test_edit_of_an_error_in_execution_is_refused(driver: Driver) -> None:
    driver.host.errors.execute([7])
    edit = ErrorEdit(
        number=7,
        edit=1,
        apply=APPLY,
        position=0,
        owner="public",
        name="t",
        command="INSERT",
        changes=(),
        edited_by="ada",
    )
    with pytest.raises(ApplyError, match="is being executed"):
        driver.host.errors.edit(edit, part=0, batch=b"", key_hashes=np.empty(0, np.uint64))


def test_keys_of_an_edit_with_a_lost_answer_hold_later_transactions(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The edit may be committed; extra keys only hold more transactions."""
    edit = ErrorEdit(
        number=7,
        edit=1,
        apply=APPLY,
        position=0,
        owner="public",
        name="t",
        command="INSERT",
        changes=(),
        edited_by="ada",
    )
    driver.coordinator.errors._holds.add(7, np.array([2], np.uint64))

    def lost(*_: object, **__: object) -> bool:
        raise DatabaseUnavailable("the answer to COMMIT was lost")

    monkeypatch.setattr(driver.host.errors._destination, "edit_error", lost)
    with pytest.raises(DatabaseUnavailable):
        driver.host.errors.edit(edit, part=0, batch=b"", key_hashes=np.array([4], np.uint64))
    assert set(driver.coordinator.errors._holds._hashes[7].tolist()) == {2, 4}


@pytest.mark.parametrize("is_made", [True, False])
def test_deleted_error_with_a_lost_answer_holds_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, *, is_made: bool
) -> None:
    session = MemoryDestination(store=driver.store).open_session(TOPOLOGY, APPLY, server=9, epoch=driver.epoch, tag=b"")
    session.begin()
    number = session.put_error(error_transaction(apply=APPLY, source=SOURCE), b"", np.array([2], np.uint64), part=0)
    session.commit([], Scn(0))
    driver.coordinator.errors._holds.add(number, np.array([2], np.uint64))
    delete = driver.host.errors._destination.delete_errors

    def lost(topology: str, numbers: Sequence[int], **found: Any) -> Any:
        if is_made:
            delete(topology, numbers, **found)
        raise DatabaseUnavailable("the answer to COMMIT was lost")

    monkeypatch.setattr(driver.host.errors._destination, "delete_errors", lost)
    with pytest.raises(DatabaseUnavailable):
        driver.host.errors.delete([number])
    assert driver.coordinator.first_error == number
    driver.clock.advance(DESCRIBE_INTERVAL_S)
    driver.host.turn(0.0)
    assert driver.coordinator.first_error == (0 if is_made else number)


def test_error_that_fails_again_is_listed_with_its_new_failure(driver: Driver) -> None:
    version = TableVersion(
        object_number=1,
        version=1,
        owner="public",
        name="nowhere",
        old_image=OldImage.KEY,
        columns=(Column(name="id", type_name="pg_catalog.int4", type_number=23, is_key=True),),
    )
    group = RowGroup(
        table=0, command=Command.INSERT, row_numbers=np.zeros(1, np.int32), old=None, new=column_values([[b"\0\0\0\1"]])
    )
    batch = LcrBatch(
        source=SOURCE,
        previous_scn=0,
        through_scn=5,
        tables=(version,),
        transactions=transactions([5], [1]),
        groups=(group,),
    )
    session = MemoryDestination(store=driver.store).open_session(TOPOLOGY, APPLY, server=9, epoch=driver.epoch, tag=b"")
    session.begin()
    hashes = np.array([2], np.uint64)
    number = session.put_error(error_transaction(apply=APPLY, source=SOURCE), codec.encode(batch), hashes, part=0)
    session.commit([], Scn(0))
    driver.coordinator.errors._holds.add(number, hashes)
    driver.start_task(0)
    outcomes = driver.host.errors.execute([number])
    driver.run()
    driver.host.turn(0.0)
    outcome = outcomes.get_nowait()
    assert outcome.failure is not None
    (found,) = MemoryDestination(store=driver.store).errors(TOPOLOGY)
    assert found.message == outcome.failure.message != "the row is not there"
    assert (found.failed_position, found.conflict_type) == (-1, "")
