"""Handlers and row LCR processing: every scenario of the manuals, in groups, alone, streamed and from the error queue.

Longer than 500 lines: one place lists every scenario, so that a missing one is noticed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import DataError, UnfitTableError
from headrace.databases.memory.destination import MemorySession
from headrace.rules.user_code.binds import read_statement
from headrace.rules.user_code.handlers import DmlHandler
from spark_apply.conversation.groups import GroupResult, GroupRetry, RetryReason
from tests.support.apply.handlers import READ, Handled, deletes, insert_log, inserts, row, rules_of, updates
from tests.support.histories.conflicts import handler
from tests.support.session.noted import noted

EXECUTE = "def run(lcr, session):\n    lcr.execute(conflict_resolution={})\n"
SHOUT = (
    "def run(lcr, session):\n    if lcr.command_type != 'DELETE':\n"
    "        lcr.set_value('new', 'a', lcr.get_value('new', 'a').decoded.upper())\n   "
    " lcr.execute(conflict_resolution=True)\n"
)
CATCH = (
    "def run(lcr, session):\n    try:\n        lcr.execute(conflict_resolution={})\n    except Exception as error:\n"
    "        session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)', lcr.get_value('new', 'id').decoded,"
    " type(error).__name__)\n"
)
SKIP = "def run(lcr, session):\n    pass\n"
RAISE = "def run(lcr, session):\n    raise ValueError('no')\n"
LOG_ERROR = (
    "def fix(lcr, error, session):\n"
    "    session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)', lcr.get_value('new', 'id').decoded,"
    " error.kind or error.number)\n"
)
MAXIMUM = handler("maximum", "a", "t", by="t")


def statements(*texts: str, operations: tuple[str, ...] = ("insert", "update", "delete")) -> DmlHandler:
    return DmlHandler(
        owner="public", name="c", operations=operations, statements=tuple(read_statement(text) for text in texts)
    )


def kinds(at: Handled) -> list[str]:
    return [error.conflict_type for error in at.errors()]


def deciders(at: Handled) -> list[tuple[str, str]]:
    """Return which conflict handler was asked, and the outcome of the LCR."""
    return [(each.handler.partition(" (")[0], each.outcome) for each in at.history()]


@pytest.mark.parametrize("large", [False, True])
def test_session_changed_before_the_commit_is_an_error_of_its_handlers(
    monkeypatch: pytest.MonkeyPatch, *, large: bool
) -> None:
    at = Handled(rules_of(EXECUTE.format(False), dml=["run"]))
    commit, queued = MemorySession.commit, MemorySession.put_error

    def refuses(session: MemorySession, *arguments: Any) -> None:
        if not writes_error:
            raise DataError("a handler's SQL changed the apply server's session", sqlstate="", changed="session")
        commit(session, *arguments)

    def notes(session: MemorySession, *arguments: Any, **named: Any) -> int:
        writes_error.append(True)
        return queued(session, *arguments, **named)

    writes_error: list[bool] = []
    monkeypatch.setattr(MemorySession, "commit", refuses)
    monkeypatch.setattr(MemorySession, "put_error", notes)
    message = at.refusal(inserts(1), large=large)
    assert message.startswith("a handler's SQL changed the apply server's session; its handlers: own:run (")
    assert at.values() == {}


# --------------------------------------------------------------------------- no handler, and a procedure handler


def test_rows_without_a_relevant_handler_are_applied_directly() -> None:
    at = Handled(rules_of(RAISE, dml=["run"]))
    at.apply(inserts(1, table="d"))
    assert (at.values("d"), at.errors()) == ({1: "a"}, ())


def test_procedure_gets_the_row_and_executes_it_changed() -> None:
    at = Handled(rules_of(SHOUT, dml=["run"]), rows=[row(5)])
    result = at.apply(*[inserts(key) for key in range(3)], updates(5, "a", "b"), deletes(1, "A"))
    assert isinstance(result, GroupResult)
    assert at.values() == {0: "A", 2: "A", 5: "B"}
    assert (result.statistics.commits, result.statistics.rollbacks, at.errors()) == (1, 0, ())


def test_row_that_a_procedure_does_not_execute_is_not_applied() -> None:
    at = Handled(rules_of(SKIP, dml=["run"]), rows=[row(1)])
    at.apply(deletes(1), inserts(2))
    assert (at.values(), at.errors()) == ({1: "a"}, ())


def test_a_handler_of_one_operation_leaves_the_others_alone() -> None:
    rules = rules_of(SKIP, dml=["run"])
    only = DmlHandler(owner="public", name="c", operations=("delete",), function=rules.dml[0].function)
    at = Handled(rules_of(SKIP, dml=[only]), rows=[row(1)])
    at.apply(deletes(1), inserts(2), updates(2, "a", "b"))
    assert at.values() == {1: "a", 2: "b"}


def test_procedures_exception_puts_only_its_transaction_in_the_error_queue() -> None:
    text = (
        "def run(lcr, session):\n    if lcr.get_value('new', 'id').decoded == 2:\n        raise"
        " ValueError('two')\n    lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1), [*inserts(7, table="d"), *inserts(2)], inserts(3))
    (error,) = at.errors()
    assert error.message.endswith("failed at handlers/own.py, line 3, in run: ValueError: two")
    assert (error.failed_position, error.row_count) == (1, 2)
    assert (at.values(), at.values("d")) == ({1: "a", 3: "a"}, {})


def test_procedure_can_handle_an_exception_of_execute() -> None:
    at = Handled(rules_of(CATCH.format(False), dml=["run"]), rows=[row(1, "x")])
    at.apply(inserts(1), inserts(2))
    assert (at.values(), at.values("log"), at.errors()) == ({1: "x", 2: "a"}, {1: "ConflictError"}, ())


def test_unhandled_exception_of_execute_is_the_transactions_error() -> None:
    at = Handled(rules_of(EXECUTE.format(False), dml=["run"]), rows=[row(1, "x")])
    at.apply(inserts(1))
    assert kinds(at) == ["insert_exists"]


def test_procedure_commits_no_error_before_all_below_is_applied() -> None:
    # Something below is not applied yet: the conflict may not be real, and the handler must not decide on it.
    at = Handled(rules_of(CATCH.format(False), dml=["run"]), rows=[row(1, "x")])
    assert isinstance(at.apply(inserts(1), below_applied=False), GroupRetry)
    assert (at.values("log"), at.errors()) == ({}, ())


def test_a_procedure_adds_columns_that_the_destination_has_and_sets_null() -> None:
    text = (
        "def run(lcr, session):\n    for column in ('b', 'u'):\n        lcr.delete_column(column, 'new')\n"
        "    lcr.add_column('new', 'b', 'added')\n    lcr.add_column('new', 'u', lcr.NULL)\n    lcr.set_value('new',"
        " 'a', lcr.NULL)\n"
        "    assert (lcr.get_value('new', 'b').decoded, lcr.get_value('new', 'u').is_null) == ('added', True)\n   "
        " lcr.execute(False)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1))
    assert at.errors() == ()
    (found,) = at.rows("c")
    assert (found[0], found[1], found[2], found[5]) == (1, None, "added", None)


def test_column_missing_in_lcr_and_destination_cannot_be_added() -> None:
    at = Handled(rules_of("def run(lcr, session):\n    lcr.add_column('new', 'nowhere', 'x')\n", dml=["run"]))
    at.apply(inserts(1))
    (error,) = at.errors()
    assert (
        "line 2, in run: neither the LCR nor public.c at the destination has a column nowhere (correct the name; "
        in error.message
    )


# --------------------------------------------------------------------------- with an update conflict handler


@pytest.mark.parametrize("text", [EXECUTE.format(True), CATCH.format(True)])
def test_execute_with_conflict_resolution_asks_the_conflict_handler(text: str) -> None:
    at = Handled(rules_of(text, dml=["run"]), rows=[row(1, "x", 15), row(2, "x", 90)], conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b", times=(10, 20)), updates(2, "a", "b", times=(10, 20)))
    assert (at.values(), at.values("log"), at.errors()) == ({1: "b", 2: "x"}, {}, ())
    assert [record.outcome for record in at.history()] == ["LCR APPLIED", "LCR DISCARDED"]


def test_execute_without_conflict_resolution_asks_no_conflict_handler() -> None:
    at = Handled(rules_of(EXECUTE.format(False), dml=["run"]), rows=[row(1, "x", 15)], conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b", times=(10, 20)))
    assert (at.values(), kinds(at)) == ({1: "x"}, ["update_differs"])


def test_conflict_unresolved_by_its_handler_is_raised_in_the_procedure() -> None:
    at = Handled(rules_of(CATCH.format(True), dml=["run"]), rows=[row(1, "x", 20)], conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b", times=(10, 20)))
    assert (at.values(), at.values("log"), at.errors()) == ({1: "x"}, {1: "ConflictError"}, ())


def test_unresolved_unhandled_conflict_is_the_transactions_error() -> None:
    at = Handled(rules_of(EXECUTE.format(True), dml=["run"]), rows=[row(1, "x", 20)], conflicts=[MAXIMUM])
    at.apply([*inserts(5, table="d"), *updates(1, "a", "b", times=(10, 20))])
    assert (at.values(), at.values("d"), kinds(at), deciders(at)) == (
        {1: "x"},
        {},
        ["update_differs"],
        [("", "ERROR QUEUE")],
    )


def test_procedure_can_handle_a_conflict_without_its_conflict_handler() -> None:
    at = Handled(rules_of(CATCH.format(False), dml=["run"]), rows=[row(1, "x", 15)], conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b", times=(10, 20)))
    assert (at.values(), at.values("log"), at.errors(), deciders(at)) == (
        {1: "x"},
        {1: "ConflictError"},
        (),
        [("own:run", "HANDLED")],
    )


@pytest.mark.parametrize("is_caught", [False, True])
@pytest.mark.parametrize(
    ("change", "kind"), [(inserts(1), "insert_exists"), (updates(2, "a", "b", times=(10, 20)), "update_missing")]
)
def test_conflict_of_another_kind_in_execute_asks_no_conflict_handler(
    change: Any, kind: str, *, is_caught: bool
) -> None:
    text = CATCH.format(True) if is_caught else EXECUTE.format(True)
    at = Handled(rules_of(text, dml=["run"]), rows=[row(1, "x", 15)], conflicts=[MAXIMUM])
    at.apply(change)
    assert (at.values(), deciders(at)) == ({1: "x"}, [("own:run", "HANDLED") if is_caught else ("", "ERROR QUEUE")])
    assert (list(at.values("log").values()), kinds(at)) == ((["ConflictError"], []) if is_caught else ([], [kind]))


@pytest.mark.parametrize("is_caught", [False, True])
def test_failing_sql_of_a_procedure_is_its_error_unless_handled(*, is_caught: bool) -> None:
    text = (
        "def run(lcr, session):\n    try:\n        session.execute('SELECT broken')\n    except Exception:\n"
        f"        {'pass' if is_caught else 'raise'}\n    lcr.execute(False)\n"
    )
    at = Handled(rules_of(text, dml=["run"]), conflicts=[MAXIMUM])
    at.apply([*inserts(1), *inserts(1, table="d")], inserts(2, table="d"))
    assert (at.values(), at.values("d")) == (({1: "a"}, {1: "a", 2: "a"}) if is_caught else ({}, {2: "a"}))
    assert [error.sqlstate for error in at.errors()] == ([] if is_caught else ["42601"])


# --------------------------------------------------------------------------- error handlers


def test_error_handler_can_handle_a_failure_of_its_execute() -> None:
    text = (
        "def fix(lcr, error, session):\n    try:\n        lcr.execute(False)\n    except Exception as again:\n"
        "        session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)', 1, type(again).__name__)\n"
    )
    at = Handled(rules_of(text, errors=["fix"]), rows=[row(1, "x")])
    at.apply([*inserts(1), *inserts(2)])
    assert (at.values(), at.values("log"), at.errors()) == ({1: "x", 2: "a"}, {1: "ConflictError"}, ())


def test_unhandled_failure_in_an_error_handler_is_the_transactions_error() -> None:
    at = Handled(
        rules_of("def fix(lcr, error, session):\n    lcr.execute(False)\n", errors=["fix"]), rows=[row(1, "x")]
    )
    at.apply([*inserts(2), *inserts(1)])
    assert (at.values(), kinds(at)) == ({1: "x"}, ["insert_exists"])


def test_error_handlers_execute_can_ask_the_conflict_handler() -> None:
    text = "def fix(lcr, error, session):\n    lcr.set_value('new', 't', 30)\n    lcr.execute({})\n"
    for resolves, expected in ((True, ({1: "b"}, [])), (False, ({1: "x"}, ["update_differs"]))):
        at = Handled(rules_of(text.format(resolves), errors=["fix"]), rows=[row(1, "x", 20)], conflicts=[MAXIMUM])
        at.apply(updates(1, "a", "b", times=(10, 20)))
        assert (at.values(), kinds(at)) == expected


def test_update_conflict_refused_by_the_error_handler_is_the_error() -> None:
    at = Handled(
        rules_of("def fix(lcr, error, session):\n    raise ValueError('no')\n", errors=["fix"]),
        rows=[row(1, "x", 20)],
        conflicts=[MAXIMUM],
    )
    at.apply([*inserts(5, table="d"), *updates(1, "a", "b", times=(10, 20))])
    assert (at.values(), at.values("d"), kinds(at), deciders(at)) == (
        {1: "x"},
        {},
        ["update_differs"],
        [("", "ERROR QUEUE")],
    )


def test_error_handler_gets_the_failing_row() -> None:
    at = Handled(rules_of(LOG_ERROR, errors=["fix"]), rows=[row(1, "x")])
    at.apply(inserts(1), inserts(2))
    assert (at.values(), at.values("log"), at.errors()) == ({1: "x", 2: "a"}, {1: "insert_exists"}, ())


def test_error_handler_can_change_the_row_and_execute_it() -> None:
    text = (
        "def fix(lcr, error, session):\n    lcr.set_value('new', 'id', lcr.get_value('new', 'id').decoded + 100)\n"
        "    lcr.execute(False)\n"
    )
    at = Handled(rules_of(text, errors=["fix"]), rows=[row(1, "x")])
    at.apply(inserts(1))
    assert at.values() == {1: "x", 101: "a"}


def test_raising_error_handler_records_the_first_error_and_its_own() -> None:
    at = Handled(
        rules_of("def fix(lcr, error, session):\n    raise ValueError('no')\n", errors=["fix"]), rows=[row(1, "x")]
    )
    at.apply(inserts(1))
    (error,) = at.errors()
    assert error.conflict_type == "insert_exists"
    assert error.message.endswith("in fix: ValueError: no")


def test_update_conflict_goes_to_conflict_handler_then_error_handler() -> None:
    at = Handled(rules_of(LOG_ERROR, errors=["fix"]), rows=[row(1, "x", 15), row(2, "x", 20)], conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b", times=(10, 20)), updates(2, "a", "b", times=(10, 20)))
    assert (at.values(), at.values("log"), at.errors()) == ({1: "b", 2: "x"}, {2: "update_differs"}, ())


def test_error_that_is_no_conflict_goes_directly_to_the_error_handler() -> None:
    at = Handled(rules_of(LOG_ERROR, errors=["fix"]), conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b"))
    assert (at.values("log"), at.errors()) == ({1: "update_missing"}, ())


# --------------------------------------------------------------------------- statements


def test_statement_handlers_run_in_order_with_the_rows_values() -> None:
    both = [
        statements("INSERT INTO public.log (id, a) VALUES (:new.id, :old.a)", operations=("update",)),
        statements("lcr.execute true"),
    ]
    at = Handled(rules_of(dml=both), rows=[row(1), row(2)])
    result = at.apply(updates(1, "a", "b"), updates(2, "a", "c"), inserts(3))
    assert isinstance(result, GroupResult)
    assert (at.values(), at.values("log")) == ({1: "b", 2: "c", 3: "a"}, {1: "a", 2: "a"})
    assert result.statistics.commits == 1


def test_a_statement_without_execute_replaces_the_row() -> None:
    at = Handled(rules_of(dml=[statements("INSERT INTO public.log (id, a) VALUES (:new.id, :command_type)")]))
    at.apply(inserts(1))
    assert (at.values(), at.values("log")) == ({}, {1: "INSERT"})


def test_error_handler_of_a_failing_statement_gets_the_unchanged_row() -> None:
    first = "INSERT INTO public.log (id, a) VALUES (:new.id, :new.a)"
    at = Handled(rules_of(LOG_ERROR, dml=[statements(first, "lcr.execute false")], errors=["fix"]), rows=[row(1, "x")])
    at.apply(inserts(1))
    # The statement's own writes are undone; those of the error handler stay.
    assert (at.values(), at.values("log"), at.errors()) == ({1: "x"}, {1: "insert_exists"}, ())


LOGGED = "INSERT INTO public.log (id, a) VALUES (:new.id, :old.a)"


@pytest.mark.parametrize("resolves", [False, True])
def test_statement_handlers_execute_can_ask_the_conflict_handler(*, resolves: bool) -> None:
    at = Handled(
        rules_of(dml=[statements(LOGGED, f"lcr.execute {str(resolves).lower()}")]),
        rows=[row(1, "x", 15), row(2, "x", 90)],
        conflicts=[MAXIMUM],
    )
    at.apply(updates(1, "a", "b", times=(10, 20)), updates(2, "a", "b", times=(10, 20)))
    if resolves:
        assert (at.values(), at.values("log"), at.errors()) == ({1: "b", 2: "x"}, {1: "a", 2: "a"}, ())
    else:
        assert (at.values(), at.values("log"), kinds(at)) == (
            {1: "x", 2: "x"},
            {},
            ["update_differs", "update_differs"],
        )


def test_unresolved_conflict_of_a_statement_handler_undoes_its_statements() -> None:
    at = Handled(rules_of(dml=[statements(LOGGED, "lcr.execute true")]), rows=[row(1, "x", 20)], conflicts=[MAXIMUM])
    at.apply(updates(1, "a", "b", times=(10, 20)))
    assert (at.values(), at.values("log"), kinds(at)) == ({1: "x"}, {}, ["update_differs"])


def test_statement_conflict_and_error_handler_are_tried_in_turn() -> None:
    at = Handled(
        rules_of(LOG_ERROR, dml=[statements(LOGGED, "lcr.execute true")], errors=["fix"]),
        rows=[row(1, "x", 15), row(2, "x", 20)],
        conflicts=[MAXIMUM],
    )
    # The conflict handler resolves the first row. It cannot resolve the second, whose statement is undone. The third
    # row is missing.
    at.apply(*[updates(key, "a", "b", times=(10, 20)) for key in (1, 2, 3)])
    assert (at.values(), at.errors()) == ({1: "b", 2: "x"}, ())
    assert at.values("log") == {1: "a", 2: "update_differs", 3: "update_missing"}


def test_every_statement_handler_gets_the_unchanged_row() -> None:
    both = [
        statements("INSERT INTO public.log (id, a) VALUES (:new.id, :new.a)"),
        statements("lcr.execute true"),
        statements(f"{LOGGED} -- again"),
    ]
    at = Handled(rules_of(dml=both), rows=[row(1)])
    at.store.sql["INSERT INTO public.log (id, a) VALUES ($1, $2) -- again"] = lambda session, values: at.store.sql[
        "INSERT INTO public.log (id, a) VALUES ($1, $2)"
    ](session, (values[0] + 100, values[1]))
    at.apply(updates(1, "a", "b"))
    assert (at.values(), at.values("log"), at.errors()) == ({1: "b"}, {1: "b", 101: "a"}, ())


# --------------------------------------------------------------------------- precommit, savepoints, order


def test_precommit_handler_runs_once_for_each_applied_transaction() -> None:
    text = (
        "def run(lcr, session):\n    if lcr.get_value('new', 'id').decoded == 2:\n        raise ValueError('two')\n   "
        " lcr.execute(True)\n"
        "def commit(commit_scn, session):\n    session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)',"
        " commit_scn, 'done')\n"
    )
    at = Handled(rules_of(text, dml=["run"], precommit="commit"))
    at.apply(inserts(1), inserts(2), inserts(3, table="d"))
    assert at.values("log") == {100: "done", 120: "done"}
    assert len(at.errors()) == 1


def test_raising_precommit_handler_puts_only_its_transaction_in_the_queue() -> None:
    text = "def commit(commit_scn, session):\n    if commit_scn == 110:\n        raise ValueError('no')\n"
    at = Handled(rules_of(text, precommit="commit"))
    at.apply(inserts(1), [*inserts(2), *inserts(2, table="d")], inserts(3))
    (error,) = at.errors()
    assert error.message.endswith("failed at handlers/own.py, line 3, in commit: ValueError: no")
    assert (at.values(), at.values("d"), error.row_count) == ({1: "a", 3: "a"}, {}, 2)


def test_handlers_savepoint_undoes_only_the_changes_inside_it() -> None:
    text = (
        "LOG = 'INSERT INTO public.log (id, a) VALUES ($1, $2)'\n"
        "def run(lcr, session):\n    key = lcr.get_value('new', 'id').decoded\n    session.execute(LOG, key, 'kept')\n"
        "    try:\n        with session.savepoint():\n            session.execute(LOG, key + 100, 'gone')\n           "
        " lcr.execute(True)\n"
        "            raise ValueError\n    except ValueError:\n        pass\n    session.execute(LOG, key + 200,"
        " 'kept')\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1), inserts(2))
    assert (at.values(), at.values("log")) == ({}, {1: "kept", 2: "kept", 201: "kept", 202: "kept"})


def test_handler_sees_its_transaction_up_to_the_preceding_rows() -> None:
    text = (
        "def run(lcr, session):\n    key = lcr.get_value('new', 'id').decoded\n"
        "    found = session.execute('SELECT a FROM public.d WHERE id = $1', key)\n"
        "    session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)', key, found[0][0] if found else 'none')\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.store.sql["SELECT a FROM public.d WHERE id = $1"] = lambda session, values: [
        (each[1],) for each in at.rows("d") if each[0] == values[0]
    ]
    at.apply(
        [*inserts(1), *inserts(1, "late", "d")],
        [*inserts(2, "early", "d"), *inserts(2), *updates(2, "early", "later", "d")],
        updates(2, "later", "last", "d"),
    )
    assert at.values("log") == {1: "none", 2: "early"}
    assert at.values("d") == {1: "late", 2: "last"}


def test_a_declared_table_keeps_its_order_with_handled_rows() -> None:
    text = (
        "def run(lcr, session):\n    found = session.execute('SELECT a FROM public.d WHERE id = $1', 1)\n"
        "    session.execute('INSERT INTO public.log (id, a) VALUES ($1, $2)', lcr.get_value('new', 'id').decoded,"
        " found[0][0])\n"
    )
    at = Handled(rules_of(text, dml=["run"], tables=[("public", "d")]), others=[row(1, "first")])
    at.store.sql["SELECT a FROM public.d WHERE id = $1"] = lambda session, values: [
        (each[1],) for each in at.rows("d") if each[0] == values[0]
    ]
    at.apply(inserts(1), updates(1, "first", "second", "d"), inserts(2))
    assert at.values("log") == {1: "first", 2: "second"}


def test_rows_of_other_tables_are_still_written_as_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Handled(rules_of(EXECUTE.format(True), dml=["run"]))
    sizes: list[tuple[str, int]] = []
    session_type = type(
        at.database.open_session("other", "x", server=0, epoch=at.database.raise_epoch("other", "x").epoch, tag=b"")
    )
    write = session_type.write
    monkeypatch.setattr(
        session_type,
        "write",
        lambda self, writes: ([noted(sizes, (w.table.name, w.row_count)) for w in writes], write(self, writes))[1],
    )
    at.apply(*[each for key in range(50) for each in (inserts(key), inserts(key, table="d"))])
    assert sizes == [("d", 50), ("c", 50)]


def test_handler_never_sees_an_error_of_rows_in_flight(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    text = (
        "def run(lcr, session):\n    try:\n        lcr.add_column('new', 'nowhere', 'x')\n    except Exception as"
        f" error:\n        open({str(seen)!r}, 'a').write(type(error).__name__ + ' ')\n"
    )
    at = Handled(rules_of(text, dml=["run"]), others=[row(7)])
    assert isinstance(at.apply(inserts(7, table="d"), inserts(1), below_applied=False), GroupRetry)
    assert set(seen.read_text().split() if seen.exists() else ()) <= {"LcrError"}


def test_time_of_a_handler_with_sql_begins_after_rows_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """This is known after the first group, so it holds from the second group on."""
    at = Handled(
        rules_of(
            f"def run(lcr, session):\n    session.execute({READ!r}, 1)\n    lcr.execute(True)\n",
            dml=["run"],
            timeout_s=1.0,
        )
    )
    write = MemorySession.write

    def slow(session: MemorySession, writes: Any) -> tuple[int, ...]:
        time.sleep(1.5 if any(each.version.name == "d" for each in writes) else 0)
        return write(session, writes)

    at.apply(inserts(1))
    monkeypatch.setattr(MemorySession, "write", slow)
    result = at.apply(inserts(7, table="d"), inserts(2), inserts(3))
    assert (result.statistics.commits, result.statistics.rollbacks) == (1, 0)


@pytest.mark.parametrize("text", [EXECUTE.format(False), RAISE], ids=["executes", "raises"])
def test_table_altered_under_rows_in_flight_is_described_again(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Described again once: the plan from the old description and the order of transactions are wrong from then on."""
    at = Handled(rules_of(text, dml=["run"]))
    write, refused = MemorySession.write, list[Any]()

    def alters(session: MemorySession, writes: Any) -> tuple[int, ...]:
        if not refused and any(each.version.name == "d" for each in writes):
            refused.append(True)
            raise UnfitTableError("the destination table public.d was altered meanwhile", table="public.d")
        return write(session, writes)

    monkeypatch.setattr(MemorySession, "write", alters)
    again = at.apply(inserts(7, table="d"), inserts(1))
    assert isinstance(again, GroupRetry)
    assert (again.reason, again.next_transaction, at.server.unfit is not None) == (RetryReason.REPLAY, 0, True)


@pytest.mark.parametrize(("text", "shown"), [(EXECUTE.format(False), "a"), (SHOUT, "A")])
@pytest.mark.parametrize("reads", [False, True])
def test_rows_between_handled_rows_are_flushed_only_for_sql_that_sees_them(
    text: str,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    reads: bool,
) -> None:
    if reads:
        text = text.replace("session):\n", f"session):\n    session.execute({READ!r}, 1)\n", 1)
    at = Handled(rules_of(text, dml=["run"]))
    written: list[int] = []
    write = MemorySession.write
    monkeypatch.setattr(
        MemorySession, "write", lambda session, writes: (noted(written, len(writes)), write(session, writes))[1]
    )
    result = at.apply(
        *[[*inserts(2 * key, table="d"), *inserts(key), *inserts(2 * key + 1, table="d")] for key in range(20)]
    )
    assert isinstance(result, GroupResult)
    assert (result.statistics.commits, result.statistics.rollbacks) == (1, 0)
    assert (at.values(), at.values("d")) == (dict.fromkeys(range(20), shown), dict.fromkeys(range(40), "a"))
    assert (len(written) > 20) == reads


def test_plain_and_handled_rows_of_one_key_keep_their_order() -> None:
    """Each handled row becomes a change of the row of `d` that its neighbours change: they fit only in their order."""
    text = (
        "def run(lcr, session):\n    lcr.object_name = 'd'\n    lcr.set_value('new', 'a', 'h' + lcr.get_value('new',"
        " 'a').decoded)\n    lcr.execute(conflict_resolution=False)\n"
    )
    at = Handled(rules_of(text, dml=["run"], tables=[("public", "d")]), others=[row(1, "0")])
    result = at.apply(
        [*updates(1, "0", "1", table="d"), *updates(1, "1", "2"), *updates(1, "h2", "3", table="d")],
        [*updates(1, "3", "4"), *updates(1, "h4", "5", table="d")],
        updates(1, "5", "6", table="d"),
    )
    assert isinstance(result, GroupResult)
    assert (result.statistics.commits, result.statistics.rollbacks, at.errors(), at.values("d")) == (1, 0, (), {1: "6"})


def test_transaction_after_a_failed_one_is_held_only_by_its_keys() -> None:
    text = (
        "def run(lcr, session):\n    if lcr.command_type == 'INSERT' and lcr.get_value('new', 'id').decoded =="
        " 1:\n        raise ValueError\n    lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1), inserts(2), updates(1, "a", "b"))
    assert [(error.failed_position, error.depends_on > 0) for error in at.errors()] == [(0, False), (-1, True)]
    assert at.values() == {2: "a"}


# --------------------------------------------------------------------------- streamed, and executed again


def test_a_streamed_transactions_rows_go_to_their_handlers() -> None:
    at = Handled(rules_of(SHOUT, dml=["run"]))
    result = at.apply_large(*[each for key in range(4) for each in inserts(key)], *inserts(9, table="d"))
    assert isinstance(result, GroupResult)
    assert (at.values(), at.values("d")) == (dict.fromkeys(range(4), "A"), {9: "a"})


def test_streamed_rows_have_no_commit_scn_until_the_precommit_handler() -> None:
    text = (
        "LOG = 'INSERT INTO public.log (id, a) VALUES ($1, $2)'\n"
        "def run(lcr, session):\n    if lcr.get_value('new', 'id').decoded < 3:\n"
        "        session.execute(LOG, lcr.position, f'{lcr.commit_scn} {lcr.scn} {lcr.source_time:%S.%f}')\n   "
        " lcr.execute(True)\ndef commit(commit_scn, session):\n    session.execute(LOG, 9, str(commit_scn))\n"
    )
    at = Handled(rules_of(text, dml=["run"], precommit="commit"))
    at.apply_large(*inserts(1), *inserts(2), *inserts(3))
    assert (at.values("log"), at.errors()) == ({0: "None 99 00.100000", 1: "None 99 00.100000", 9: "100"}, ())


def test_commit_scn_bind_is_null_in_a_streamed_transaction() -> None:
    at = Handled(
        rules_of(dml=[statements("INSERT INTO public.log (id, a) VALUES (:new.id, :commit_scn)", "lcr.execute true")])
    )
    at.store.sql["INSERT INTO public.log (id, a) VALUES ($1, $2)"] = lambda session, values: insert_log(
        session, (values[0], str(values[1]))
    )
    at.apply_large(*inserts(1), *inserts(2))
    assert at.values("log") == {1: "None", 2: "100"}


def test_streamed_transaction_with_a_raising_handler_is_returned_whole() -> None:
    text = (
        "def run(lcr, session):\n    if lcr.get_value('new', 'id').decoded == 2:\n        raise"
        " ValueError('two')\n    lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    result = at.apply_large(*[each for key in range(4) for each in inserts(key)])
    assert isinstance(result, GroupRetry)
    assert result.failure is not None
    assert "ValueError: two" in result.failure.message
    assert at.values() == {}


def test_an_error_transaction_is_executed_through_its_handlers() -> None:
    text = (
        "def run(lcr, session):\n    if not session.execute('SELECT id, a FROM public.c WHERE id = $1', 7):\n"
        "        raise ValueError('seven is missing')\n    lcr.execute(True)\n"
    )
    at = Handled(rules_of(text, dml=["run"]))
    at.apply(inserts(1))
    (error,) = at.errors()
    failure = at.execute_error(error.number).failure
    assert failure is not None
    assert "seven is missing" in failure.message
    at.store.insert(
        "public",
        "c",
        [tuple(None if v is None else v.to_bytes(4, "big") if isinstance(v, int) else v.encode() for v in row(7))],
    )
    assert at.execute_error(error.number).failure is None
    assert (at.values(), at.errors()) == ({1: "a", 7: "a"}, ())


@pytest.mark.parametrize(
    ("change", "kind", "differs"),
    [
        (inserts(1), "insert_exists", ()),
        (updates(1, "a", "b"), "update_differs", ("a",)),
        (deletes(1), "delete_differs", ("a", "t")),
    ],
)
def test_error_of_a_procedure_shows_the_conflicting_row(change: Any, kind: str, differs: tuple[str, ...]) -> None:
    at = Handled(rules_of(EXECUTE.format(True), dml=["run"]), rows=[row(1, "x", 15)])
    at.apply(change)
    (error,), (record,) = at.errors(), at.history()
    assert error.conflict_type == record.kind == kind
    assert record.columns == differs
    # The LCR as received, once, and the existing row.
    names = ("id", "a", "b", "t", "n", "u")
    images = [image for image in ("old", "new") if getattr(change[0][1], image) is not None]
    assert [text.partition("=")[0] for text in error.readable if text.startswith(("old.", "new."))] == [
        f"{image}.{name}" for image in images for name in names
    ]
    assert [text.partition("=")[0] for text in record.current] == list(names)
    assert [text for text in error.readable if text.startswith("current.")] == [
        f"current.{text}" for text in record.current
    ]


def test_conflicting_row_is_not_shown_for_another_error_of_the_procedure() -> None:
    at = Handled(rules_of(CATCH.format(False) + "    raise ValueError('later')\n", dml=["run"]), rows=[row(1, "x", 15)])
    at.apply(updates(1, "a", "b"))
    (error,) = at.errors()
    assert "later" in error.message
    assert [text for text in error.readable if text.startswith(("current.", "DIFFERS"))] == []


# --------------------------------------------------------------------------- history of conflicts handled by functions


@pytest.mark.parametrize(
    "text", [LOG_ERROR, "def fix(lcr, error, session):\n    lcr.set_value('new', 'id', 101)\n    lcr.execute(False)\n"]
)
def test_conflict_handled_by_an_error_handler_is_recorded_and_counted(text: str) -> None:
    at = Handled(rules_of(text, errors=["fix"]), rows=[row(1, "x", 15)])
    result = at.apply(inserts(1), inserts(2))
    (record,) = at.history()
    assert (record.kind, record.handler.partition(" (")[0], record.outcome, record.error_number) == (
        "insert_exists",
        "own:fix",
        "HANDLED",
        0,
    )
    assert (
        [each for each in record.new if each.startswith("a=")],
        [each for each in record.current if each.startswith("a=")],
    ) == ([r"a=\x61"], ["a=x"])
    assert (record.commit_scn, record.position, record.command) == (100, 0, "INSERT")
    assert result.statistics.conflicts == 1


def test_conflict_is_recorded_again_when_the_error_handler_repeats_it() -> None:
    again = "def fix(lcr, error, session):\n    try:\n        lcr.execute(False)\n    except Exception:\n        pass\n"
    for text, times in ((LOG_ERROR, 1), (again, 2)):
        at = Handled(rules_of(text, errors=["fix"]), rows=[row(1, "x")])
        at.apply(inserts(1))
        assert deciders(at) == [("own:fix", "HANDLED")] * times


def test_conflict_undone_by_a_procedures_savepoint_is_recorded() -> None:
    text = (
        "def run(lcr, session):\n    try:\n        with session.savepoint():\n            lcr.execute(False)\n   "
        " except Exception:\n        pass\n"
    )
    at = Handled(rules_of(text, dml=["run"]), rows=[row(1, "x")])
    at.apply([*inserts(2), *inserts(1)])
    assert (at.values(), deciders(at)) == ({1: "x", 2: "a"}, [("own:run", "HANDLED")])
    (record,) = at.history()
    assert (record.commit_scn, record.position, record.transaction_id > 0) == (100, 1, True)


def test_caught_conflict_of_a_failed_transaction_is_not_recorded() -> None:
    at = Handled(
        rules_of(
            CATCH.format(False) + "    if lcr.get_value('new', 'id').decoded == 2:\n        raise ValueError('no')\n",
            dml=["run"],
        ),
        rows=[row(1, "x")],
    )
    at.apply([*inserts(1), *inserts(2)])
    assert (at.values(), at.values("log"), deciders(at), len(at.errors())) == ({1: "x"}, {}, [], 1)


def test_error_that_is_no_conflict_is_not_recorded() -> None:
    at = Handled(
        rules_of(
            "def run(lcr, session):\n    try:\n        session.execute('SELECT broken')\n    except Exception:\n       "
            " pass\n    lcr.execute(True)\n",
            dml=["run"],
        )
    )
    at.apply(inserts(1))
    assert (at.values(), at.history()) == ({1: "a"}, ())


def test_handled_conflicts_of_a_streamed_transaction_are_recorded() -> None:
    at = Handled(rules_of(LOG_ERROR, errors=["fix"]), rows=[row(1, "x"), row(3, "y")])
    result = at.apply_large(*inserts(1), *inserts(2), *inserts(3))
    assert (at.values(), at.errors()) == ({1: "x", 2: "a", 3: "y"}, ())
    assert [(each.new[0], each.kind, each.outcome) for each in at.history()] == [
        (rf"id=\x{key:08x}", "insert_exists", "HANDLED") for key in (1, 3)
    ]
    assert isinstance(result, GroupResult)
    assert result.statistics.conflicts == 2
