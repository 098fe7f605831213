"""Execution of error transactions through a function that can change or skip LCRs, in one destination transaction."""

from __future__ import annotations

import pytest

from spark_apply.handlers.crashes import CRASHES_MAX
from tests.support.apply.handlers import LOG, Handled, inserts, row, rules_of, through, updates


def failed(**changed: object) -> tuple[Handled, int]:
    """Three inserts in one transaction; the second one's row already exists."""
    at = Handled(rules_of(), rows=[row(2, "theirs")], **changed)
    at.apply([*inserts(1), *inserts(2, "ours"), *inserts(3)])
    (error,) = at.errors()
    assert (error.conflict_type, error.failed_position) == ("insert_exists", 1)
    return at, error.number


def test_function_can_skip_an_lcr_and_sees_the_failed_one_with_its_error() -> None:
    at, number = failed()
    assert (
        at.execute_error(
            number,
            through(
                "def mend(lcr, error, session):\n    if lcr.position == error.position:\n        assert (error.kind,"
                " lcr.command_type) == ('insert_exists', 'INSERT')\n    else:\n        lcr.execute(True)\n"
            ),
        ).failure
        is None
    )
    assert (at.values(), at.errors()) == ({1: "a", 2: "theirs", 3: "a"}, ())


def test_function_can_change_an_lcr_and_write_in_the_same_transaction() -> None:
    at, number = failed()
    commits = at.store.commit_count
    assert (
        at.execute_error(
            number,
            through(
                "def mend(lcr, error, session):\n    if lcr.position == error.position:\n        lcr.set_value('new',"
                f" 'id', 9)\n    lcr.execute(False)\n    session.execute('{LOG}', lcr.get_value('new', 'id').decoded,"
                " 'mended')\n"
            ),
        ).failure
        is None
    )
    assert at.values() == {1: "a", 2: "theirs", 3: "a", 9: "ours"}
    assert at.values("log") == {1: "mended", 9: "mended", 3: "mended"}
    assert at.store.commit_count == commits + 1


def test_exception_rolls_back_the_execution_and_records_the_code_line() -> None:
    at, number = failed()
    failure = at.execute_error(
        number,
        through(
            "def mend(lcr, error, session):\n    if lcr.position == 2:\n        raise ValueError('no')\n   "
            " lcr.set_value('new', 'id', 50 + lcr.position)\n    lcr.execute(True)\n"
        ),
    ).failure
    assert failure is not None
    assert "own:mend" in failure.message
    assert "failed at handlers/own.py, line 3, in mend: ValueError: no" in failure.message
    assert failure.position == 2
    assert at.values() == {2: "theirs"}
    assert [error.number for error in at.errors()] == [number]


@pytest.mark.parametrize(
    ("text", "problem"), [("def mend(lcr, session): ...\n", "cannot be called with"), ("mend = 1\n", "is no function")]
)
def test_uncallable_function_executes_nothing(text: str, problem: str) -> None:
    at, number = failed()
    failure = at.execute_error(number, through(text)).failure
    assert failure is not None
    assert problem in failure.message
    assert (at.values(), len(at.errors())) == ({2: "theirs"}, 1)


def test_only_the_precommit_handler_runs_beside_the_function() -> None:
    own = (
        "def run(lcr, session):\n    raise ValueError\ndef last(commit_scn, session):\n   "
        f" session.execute('{LOG}', commit_scn, 'seen')\n"
    )
    at = Handled(rules_of(own, dml=["run"], precommit="last"))
    at.apply([*inserts(1)])
    (error,) = at.errors()
    assert (
        at.execute_error(error.number, through("def mend(lcr, error, session):\n    lcr.execute(True)\n")).failure
        is None
    )
    assert (at.values(), list(at.values("log").values())) == ({1: "a"}, ["seen"])


def test_function_gets_rows_of_every_table_of_the_transaction() -> None:
    at = Handled(rules_of(), others=[row(7, "b")])
    at.apply([*inserts(1), *updates(7, "other", "c", "d")])
    (error,) = at.errors()
    assert (
        at.execute_error(
            error.number,
            through(
                "def mend(lcr, error, session):\n    if lcr.object_name == 'd':\n        lcr.set_value('old', 'a',"
                " 'b')\n    lcr.execute(True)\n"
            ),
        ).failure
        is None
    )
    assert (at.values(), at.values("d")) == ({1: "a"}, {7: "c"})


def test_calls_of_a_function_that_ends_its_process_are_limited() -> None:
    at, number = failed()
    mend = through("def mend(lcr, error, session):\n    import signal; signal.raise_signal(signal.SIGINT)\n")
    for death in range(1 + CRASHES_MAX):
        with pytest.raises(KeyboardInterrupt):
            at.execute_error(number, mend, is_careful=death > 0)
        at.server = at.new_server()
    failure = at.execute_error(number, mend, is_careful=True).failure
    assert failure is not None
    assert "own:mend" in failure.message
    assert "is not called again" in failure.message
    assert (at.values(), len(at.errors())) == ({2: "theirs"}, 1)
