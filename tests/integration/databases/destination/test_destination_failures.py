"""An apply server at a real destination that fails: which failures are waited for, which are refused, and which need an
operator.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import psycopg
import pytest

from headrace.base.errors import DatabaseError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.ports import ErrorTransaction
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.destination.server_session import session as session_module
from headrace.databases.postgres.destination.server_session.session import PostgresSession
from headrace.databases.postgres.destination.server_session.transaction import LOCK_TIMEOUT_MS
from headrace.lcr.batch import Command, OldImage
from protos import codec
from spark_apply.conversation.groups import (
    GroupGo,
    GroupMode,
    GroupResult,
    GroupRetry,
    RetryReason,
    ServerMessage,
)
from spark_apply.server.apply_server import ApplyServer
from tests.fix_postgres import KEPT
from tests.support.apply.apply_engine import APPLY, SOURCE, TOPOLOGY
from tests.support.apply.groups import whole_group
from tests.support.histories.apply_history import Change, Table, Transaction, batch_of
from tests.support.redo.postgres_redo import wait_until
from tests.support.session.matrices import values

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

_STRANGERS = f"""
SELECT count(*) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND datname IS DISTINCT FROM current_database() AND application_name <> '{KEPT}'
"""
T = Table(11, "plain", ("id", "v", "big"), OldImage.KEY)
HELD_S = 60.0  # bounds waits that take a second
DEADLOCKS_MAX = 5  # tries to have one
# Raises the error that the table `fault` names, for each row written to `plain`.
_FAULT = """
CREATE TABLE fault (state text, message text);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE asked public.fault;
BEGIN
    SELECT * INTO asked FROM public.fault;
    IF FOUND AND NEW.v LIKE 'bad%' THEN
        RAISE EXCEPTION USING MESSAGE = asked.message, ERRCODE = asked.state;
    END IF;
    RETURN NEW;
END $$
"""
_TRIGGER = "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION refuse();"
_DEFERRED = (
    "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON plain DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION refuse();"
)
_ALWAYS = "ALTER TABLE plain ENABLE ALWAYS TRIGGER refuse"


def key(number: int) -> bytes:
    return number.to_bytes(4, "big")


def insert(number: int, value: bytes = b"new") -> Change:
    return Change(T, Command.INSERT, new=(key(number), value, b"b"))


def update(number: int, value: bytes = b"new") -> Change:
    old, new = (key(number), b"?", b"b"), (key(number), value, b"b")
    return Change(T, Command.UPDATE, old=old, new=new, unchanged=frozenset({2}))


class Serving:
    """Apply server 0 at a database with rows 1 and 2 in `plain`, and a user's session there."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.user = psycopg.connect(dsn, autocommit=True)
        self.user.execute("CREATE TABLE plain (id integer PRIMARY KEY, v text, big text)")
        self.user.execute("INSERT INTO plain VALUES (1, 'old', 'b'), (2, 'old', 'b')")
        self.destination = PostgresDestination(dsn, site="dbs2")
        self.destination.prepare(TOPOLOGY)
        self.epoch = self.destination.raise_epoch(TOPOLOGY, APPLY).epoch
        self.server = ApplyServer(
            apply=APPLY,
            source=SOURCE,
            decode=codec.decode,
            encode=codec.encode,
            error_batches=self.destination.error_batches,
            open_session=lambda: self.destination.open_session(TOPOLOGY, APPLY, server=0, epoch=self.epoch, tag=b"\0"),
        )
        self.server.connect()

    def close(self) -> None:
        self.server.close()
        self.destination.close()
        self.user.close()

    def assign(self, *transactions: Transaction, **fields: object) -> None:
        batch = batch_of(transactions, 50)
        self.server.receive(
            whole_group(codec.encode(batch), **{"after_scn": 50, "through_scn": batch.through_scn, **fields})
        )
        self.server.receive(GroupGo(group=1, attempt=0, low_watermark=50, below_applied=True))

    def step(self) -> tuple[ServerMessage, ...]:
        """Run one step when the server wants it."""
        done = self.server.step(time.monotonic())
        if done.wake_at is not None:
            time.sleep(max(0.0, min(done.wake_at - time.monotonic(), 0.5)))
        return done.reports

    def step_until(self, holds: Callable[[], object]) -> None:
        """Step until `holds`; nothing may be reported before."""
        deadline = time.monotonic() + HELD_S
        while not holds():
            assert time.monotonic() < deadline, (self.server.state, self.server.last_error)
            assert self.step() == ()

    def reported(self) -> ServerMessage:
        deadline = time.monotonic() + HELD_S
        while not (reports := self.step()):
            assert time.monotonic() < deadline, (self.server.state, self.server.last_error)
        (report,) = reports
        return report

    def finish(self) -> GroupResult:
        result = self.reported()
        assert isinstance(result, GroupResult)
        return result

    def rows(self) -> list[tuple[int, str]]:
        with psycopg.connect(self.dsn) as connection:
            return [
                (row[0], row[1][:3]) for row in connection.execute("SELECT id, v FROM plain ORDER BY id").fetchall()
            ]

    def errors(self) -> list[ErrorTransaction]:
        return list(self.destination.errors(TOPOLOGY, APPLY))

    def session_pid(self) -> int:
        row = self.user.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s",
            (f"headrace {TOPOLOGY}/%",),
        ).fetchone()
        return row[0] if row else 0

    def is_waiting_for_a_lock(self) -> bool:
        # Use another session: the user's may be in a transaction, and then sees old statistics.
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(
                "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE %s"
                " AND wait_event_type = 'Lock'",
                (f"headrace {TOPOLOGY}/%",),
            ).fetchone()
        return row is not None

    @contextlib.contextmanager
    def waiting_step(self) -> Iterator[None]:
        """Run a step that waits for a lock of the user's, without a pause before; it has failed at the end of the
        block.
        """
        reports: list[tuple[ServerMessage, ...]] = []
        now = max(time.monotonic(), self.server._wake_at or 0.0)
        stepping = threading.Thread(target=lambda: reports.append(self.server.step(now).reports))
        stepping.start()
        deadline = time.monotonic() + HELD_S
        while not self.is_waiting_for_a_lock():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield
        stepping.join(HELD_S)
        assert reports == [()]


@pytest.fixture
def at(pg_destination: EmbeddedServer, prepared_database: Callable[[EmbeddedServer], str]) -> Iterator[Serving]:
    made = Serving(prepared_database(pg_destination))
    yield made
    made.close()


def assert_retried_and_then_applied(at: Serving, problem: str) -> None:
    """Check that the server waited and said why; when the cause is gone, everything is applied and nothing was skipped."""
    assert at.server.state == "ROLLBACK TRANSACTION"
    assert problem in at.server.last_error
    assert at.errors() == []
    result = at.finish()
    assert (result.errors, result.statistics.transactions) == ((), 2)
    assert at.rows() == [(1, "new"), (2, "new"), (3, "new")]
    assert at.errors() == []


def two_transactions() -> tuple[Transaction, Transaction]:
    return Transaction(1, [update(1), update(2)]), Transaction(2, [insert(3)])


# --------------------------------------------------------------------------- failures that are waited for


@pytest.mark.parametrize(
    "lock", ["SELECT FROM plain WHERE id = 2 FOR UPDATE", "LOCK TABLE plain", "INSERT INTO plain VALUES (3)"]
)
def test_row_table_or_key_that_a_user_locks_is_waited_for(at: Serving, monkeypatch: pytest.MonkeyPatch, lock: str):
    monkeypatch.setitem(session_module._SETTINGS, "lock_timeout", "200")
    at.user.execute("SELECT pg_terminate_backend(%s)", (at.session_pid(),))  # the next session has that setting
    at.assign(*two_transactions())
    with at.user.transaction(force_rollback=True):
        at.user.execute(lock)
        at.step_until(lambda: "lock timeout" in at.server.last_error)
    assert_retried_and_then_applied(at, "lock timeout")


def test_apply_server_gives_way_in_a_deadlock_with_a_user_and_retries(at: Serving, monkeypatch: pytest.MonkeyPatch):
    at.user.execute("SET deadlock_timeout = '1h'")  # only the apply server's session looks for deadlocks
    # It looks once: the user must want the other row by then. A machine that stalls is sometimes too late.
    monkeypatch.setitem(session_module._SETTINGS, "deadlock_timeout", "4s")
    monkeypatch.setitem(session_module._SETTINGS, "lock_timeout", "15s")
    at.server.close()
    at.server.connect()
    at.assign(*two_transactions())
    for _ in range(DEADLOCKS_MAX):
        with at.user.transaction(force_rollback=True):
            at.user.execute("UPDATE plain SET v = 'user' WHERE id = 2")
            with at.waiting_step():
                at.user.execute("UPDATE plain SET v = 'user' WHERE id = 1")
        if "deadlock" in at.server.last_error:
            break
        assert "lock timeout" in at.server.last_error
    assert_retried_and_then_applied(at, "deadlock")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        ("pg_terminate_backend", "closed the connection"),
        ("pg_cancel_backend", "canceling statement"),
    ],
)
def test_session_ended_or_cancelled_within_a_group_is_reopened(
    at: Serving, monkeypatch: pytest.MonkeyPatch, function: str, problem: str
):
    # otherwise it may give up before it is ended
    monkeypatch.setitem(session_module._SETTINGS, "lock_timeout", f"{HELD_S:g}s")
    at.server.close()
    at.server.connect()
    at.assign(*two_transactions())
    with at.user.transaction(force_rollback=True):
        at.user.execute("UPDATE plain SET v = 'user' WHERE id = 2")
        with at.waiting_step():
            at.user.execute(f"SELECT {function}(%s)", (at.session_pid(),))
    assert_retried_and_then_applied(at, problem)


def test_server_without_a_free_connection_is_waited_for(at: Serving):
    at.assign(*two_transactions())
    others: list[psycopg.Connection] = []
    try:
        at.user.execute("SELECT pg_terminate_backend(%s, %s)", (at.session_pid(), int(HELD_S * 1000)))
        # Sessions that are just ending, also those of earlier tests, still occupy their places.
        wait_until(lambda: at.user.execute(_STRANGERS).fetchone() == (0,), HELD_S)
        quiet = 0
        while quiet < 3:
            before = len(others)
            with pytest.raises(psycopg.OperationalError, match="too many clients"):
                others.extend(psycopg.connect(at.dsn) for _ in range(10_000))
            quiet = quiet + 1 if len(others) == before else 0
            time.sleep(0.2)
        at.step_until(lambda: "too many clients" in at.server.last_error)
    finally:
        for other in others:
            other.close()
        # A closed session occupies its place until its process has ended, and the test's own next sessions need some.
        wait_until(
            lambda: (
                at.user.execute(
                    "SELECT count(*) < 10 FROM pg_stat_activity WHERE datname = current_database()"
                ).fetchone()
                == (True,)
            ),
            HELD_S,
        )
    assert_retried_and_then_applied(at, "too many clients")


def test_database_that_becomes_read_only_by_default_is_still_written(at: Serving):
    at.assign(*two_transactions())
    at.user.execute(f"ALTER DATABASE {at.user.info.dbname} SET default_transaction_read_only = on")
    at.user.execute("SELECT pg_terminate_backend(%s, 5000)", (at.session_pid(),))
    assert at.finish().errors == ()
    assert at.user.execute("SELECT id, v FROM plain ORDER BY id").fetchall() == [(1, "new"), (2, "new"), (3, "new")]


def test_database_that_refuses_connections_is_waited_for(at: Serving):
    at.assign(*two_transactions())
    with psycopg.connect(at.dsn, dbname="postgres", autocommit=True) as admin:
        admin.execute(f"ALTER DATABASE {at.user.info.dbname} ALLOW_CONNECTIONS false")
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", (at.session_pid(),))
        at.step_until(lambda: "not currently accepting" in at.server.last_error)
        admin.execute(f"ALTER DATABASE {at.user.info.dbname} ALLOW_CONNECTIONS true")
    assert_retried_and_then_applied(at, "not currently accepting")


def test_timeouts_and_isolation_of_the_role_do_not_reach_the_apply_session(at: Serving):
    # A minute where a shorter bound would stop a slow machine's first statement, which sets them.
    of_role = {
        "statement_timeout": "1min",
        "lock_timeout": "1ms",
        "idle_in_transaction_session_timeout": "1ms",
        "transaction_timeout": "1min",
        "default_transaction_isolation": "serializable",
    }
    for setting, value in of_role.items():
        at.user.execute(f"ALTER ROLE CURRENT_USER IN DATABASE {at.user.info.dbname} SET {setting} = '{value}'".encode())
    at.server.close()
    at.server.connect()
    session = at.server._session()
    assert isinstance(session, PostgresSession)
    shown = {
        setting: session._transaction.connection.execute(f"SHOW {setting}".encode()).fetchall()[0][0]
        for setting in of_role
    }
    assert shown == {
        "statement_timeout": "0",
        "lock_timeout": f"{LOCK_TIMEOUT_MS // 1000}s",
        "idle_in_transaction_session_timeout": "0",
        "transaction_timeout": "0",
        "default_transaction_isolation": "read committed",
    }
    at.assign(*two_transactions())
    assert at.finish().errors == ()
    assert at.user.execute("SELECT id, v FROM plain ORDER BY id").fetchall() == [(1, "new"), (2, "new"), (3, "new")]


@pytest.mark.parametrize(
    "state",
    values(
        [
            "08006",
            "08P01",
            "40001",
            "40003",
            "40P01",
            "53000",
            "53100",
            "53200",
            "53300",
            "53400",
            "55006",
            "55P03",
            "57014",
            "57P01",
            "57P03",
            "57P05",
            "58000",
            "58030",
            "25006",
            "25P03",
            "25P04",
        ],
        "08006",
        "40001",
        "53100",
        "55P03",
        "57014",
        "58030",
        "25006",
    ),
)
def test_every_failure_of_the_environment_is_retried_and_never_skipped(at: Serving, state: str):
    """A trigger raises them, so that every class comes from a real server within a group."""
    at.user.execute(_FAULT + ";" + _TRIGGER + _ALWAYS)
    at.user.execute("INSERT INTO fault VALUES (%s, 'no luck now')", (state,))
    at.assign(Transaction(1, [update(1), update(2, b"bad")]), Transaction(2, [insert(3)]))
    at.step_until(lambda: "no luck now" in at.server.last_error)
    assert (at.server.state, at.errors(), at.rows()) == ("ROLLBACK TRANSACTION", [], [(1, "old"), (2, "old")])
    at.user.execute("TRUNCATE fault")
    result = at.finish()
    assert (result.errors, at.errors(), at.rows()) == ((), [], [(1, "new"), (2, "bad"), (3, "new")])


# --------------------------------------------------------------------------- refused changes


@pytest.mark.parametrize("when", [_TRIGGER, _DEFERRED], ids=["at once", "at the end"])
@pytest.mark.parametrize(
    "state",
    values(
        [
            "P0001",
            "23514",
            "22012",
            "09000",
            "38000",
            "54000",
            "40000",
            "40002",
            "08003",
            "55000",
            "55P02",
            "55P04",
            "0A000",
            "HV000",
            "AB123",
        ],
        "P0001",
        "23514",
        "40002",
        "55000",
        "AB123",
    ),
)
def test_row_that_the_destination_refuses_makes_its_transaction_an_error(at: Serving, state: str, when: str):
    at.user.execute(_FAULT + ";" + when + _ALWAYS)
    at.user.execute("INSERT INTO fault VALUES (%s, 'not this one')", (state,))
    at.assign(Transaction(1, [update(1)]), Transaction(2, [insert(4), update(2, b"bad")]), Transaction(3, [insert(3)]))
    result = at.finish()
    (error,) = at.errors()
    assert (error.transaction_id, error.sqlstate, error.row_count) == (2, state, 2)
    assert [found.number for found in result.errors] == [error.number]
    assert at.rows() == [(1, "new"), (2, "old"), (3, "new")]

    execute = partial(
        at.assign,
        Transaction(9, []),
        mode=GroupMode.EXECUTE_ERROR,
        batches=(),
        error_numbers=(error.number,),
    )
    execute()
    failure = at.finish().failure
    assert failure is not None
    assert (failure.sqlstate, at.errors()) == (state, [error])
    at.user.execute("TRUNCATE fault")
    execute()
    assert (at.finish().failure, at.errors()) == (None, [])
    assert at.rows() == [(1, "new"), (2, "bad"), (3, "new"), (4, "new")]


@pytest.mark.parametrize("default", ["currval('s')", "lastval()"])
def test_default_that_needs_another_session_makes_its_transaction_an_error(at: Serving, default: str):
    """The error is of class 55 without a place in a function. Apply's session has never used the sequence, and never
    will.
    """
    at.user.execute(
        "CREATE SEQUENCE s; ALTER TABLE plain ADD COLUMN extra bigint; ALTER TABLE plain ALTER COLUMN extra SET"
        f" DEFAULT {default}"
    )
    at.assign(Transaction(1, [update(1)]), Transaction(2, [insert(4)]), Transaction(3, [update(2)]))
    result = at.finish()
    (error,) = at.errors()
    assert (error.transaction_id, error.sqlstate, [found.number for found in result.errors]) == (
        2,
        "55000",
        [error.number],
    )
    assert at.rows() == [(1, "new"), (2, "new")]


def test_truncate_with_pending_deferred_triggers_goes_into_the_error_queue(at: Serving):
    """The second transaction fails in this way only together with the first one."""
    at.user.execute(_FAULT + ";" + _DEFERRED + _ALWAYS)
    truncate = Change(T, Command.TRUNCATE)
    at.assign(
        Transaction(1, [update(1)]),
        Transaction(2, [truncate]),
        Transaction(3, [insert(3), truncate]),
        Transaction(4, [insert(4)]),
    )
    at.finish()
    # the last one depends on it
    assert [(error.transaction_id, error.sqlstate) for error in at.errors()] == [(3, "55006"), (4, "")]
    assert at.rows() == []


def test_published_table_without_a_replica_identity_is_waited_for(at: Serving):
    """This is also of class 55, but concerns no single row: the server says it of every UPDATE until the operator acts."""
    at.user.execute("ALTER TABLE plain REPLICA IDENTITY NOTHING; CREATE PUBLICATION further FOR TABLE plain")
    at.assign(Transaction(1, [update(1), update(2)]), Transaction(2, [insert(3)]))
    at.step_until(lambda: "replica identity" in at.server.last_error)
    assert at.errors() == []
    at.user.execute("ALTER TABLE plain REPLICA IDENTITY DEFAULT")
    result = at.finish()
    assert (result.errors, at.errors(), at.rows()) == ((), [], [(1, "new"), (2, "new"), (3, "new")])


def test_unidentified_table_that_only_a_trigger_writes_is_waited_for(at: Serving):
    at.user.execute(
        "CREATE TABLE last (v text); INSERT INTO last VALUES ('none'); CREATE PUBLICATION further FOR TABLE last;"
        "CREATE FUNCTION note_last() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN UPDATE public.last SET v = NEW.v;"
        " RETURN NEW; END';"
        "CREATE TRIGGER note_last BEFORE INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION note_last(); ALTER"
        " TABLE plain ENABLE ALWAYS TRIGGER note_last"
    )
    at.assign(Transaction(1, [update(1), update(2)]), Transaction(2, [insert(3)]))
    at.step_until(lambda: "replica identity" in at.server.last_error)
    assert at.errors() == []
    at.user.execute("ALTER TABLE last REPLICA IDENTITY FULL")
    result = at.finish()
    assert (result.errors, at.errors(), at.rows()) == ((), [], [(1, "new"), (2, "new"), (3, "new")])


def test_value_too_long_for_an_index_goes_into_the_error_queue(at: Serving):
    at.user.execute("CREATE INDEX ON plain (v)")
    long = random.Random(1).randbytes(10_000).hex().encode()  # does not compress
    at.assign(Transaction(1, [insert(3, long)]), Transaction(2, [insert(4)]))
    at.finish()
    assert [error.sqlstate for error in at.errors()] == ["54000"]
    assert at.rows() == [(1, "old"), (2, "old"), (4, "new")]


def test_truncate_of_a_referenced_table_goes_into_the_error_queue(at: Serving):
    at.user.execute("CREATE TABLE other (id integer REFERENCES plain)")
    at.assign(Transaction(1, [Change(T, Command.TRUNCATE)]))
    at.finish()
    (error,) = at.errors()
    assert error.sqlstate == "0A000"
    assert "foreign key" in error.message


# --------------------------------------------------------------------------- failures that need an operator


@pytest.mark.parametrize("state", ["XX001", "28000", "F0000"])
def test_failure_that_needs_an_operator_ends_the_server_without_errors(at: Serving, state: str):
    at.user.execute(_FAULT + ";" + _TRIGGER + _ALWAYS)
    at.user.execute("INSERT INTO fault VALUES (%s, 'mend this')", (state,))
    at.assign(Transaction(1, [update(2, b"bad")]))
    with pytest.raises(DatabaseError, match="mend this") as caught:
        at.finish()
    assert (type(caught.value), at.errors(), at.rows()) == (DatabaseError, [], [(1, "old"), (2, "old")])


@pytest.mark.parametrize("when", [_TRIGGER, _DEFERRED], ids=["immediate", "deferred"])
def test_missing_right_of_a_function_is_an_error_that_names_the_function(at: Serving, when: str):
    at.user.execute(_FAULT + ";" + when + _ALWAYS)
    at.user.execute("INSERT INTO fault VALUES ('42501', 'permission denied for table secret')")
    at.assign(Transaction(1, [update(1, b"bad")]), Transaction(2, [update(2)]))
    at.finish()
    (error,) = at.errors()
    assert (error.transaction_id, error.sqlstate, at.rows()) == (1, "42501", [(1, "old"), (2, "new")])
    assert "permission denied for table secret in PL/pgSQL function public.refuse() line" in error.message
    assert "grant the role that applies what this names" in error.message


def test_column_that_starts_to_need_a_value_pauses_the_server(at: Serving):
    at.user.execute("ALTER TABLE plain ADD COLUMN extra integer NOT NULL DEFAULT 0")
    at.assign(*two_transactions())
    at.finish()
    at.user.execute("ALTER TABLE plain ALTER COLUMN extra DROP DEFAULT")
    at.assign(Transaction(3, [insert(4)]), after_scn=250)
    given_back = at.reported()
    assert isinstance(given_back, GroupRetry)
    assert (given_back.reason, given_back.applied) == (RetryReason.REPLAY, ())
    assert at.server.state == "PAUSED: WAITING FOR ALTER"
    assert at.server.unfit is not None
    at.user.execute(at.server.unfit.hint)
    at.assign(Transaction(3, [insert(4)]), after_scn=250)
    at.finish()
    assert (at.errors(), at.rows()[-1]) == ([], (4, "new"))
