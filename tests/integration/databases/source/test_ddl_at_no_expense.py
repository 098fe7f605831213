"""A user's DDL succeeds, soon and with their own rights, whatever becomes of the record."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from headrace.base.errors import DatabaseUnavailable
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.lcr.ddl import failed_ddl_of
from tests.support.databases.ddl_recording import (
    DDL,
    PATIENCE_S,
    TABLE,
    USER,
    Recording,
    columns,
    site_of_version,
    wait_until_waiting,
)
from tests.support.databases.postgres_site import ALL, Site
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


def test_users_without_rights_are_recorded_and_can_do_nothing_else(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    user.execute("CREATE TABLE own.t (id int); ALTER TABLE own.t ADD COLUMN c int; DROP TABLE own.t")
    made = recording.records()
    assert [each["tag"] for each in made] == ["CREATE TABLE", "ALTER TABLE", "DROP TABLE"]
    assert {each["user"] for each in made} == {USER}
    forged = "INSERT INTO headrace_ddl.log (relation, parts, content) VALUES (1, '{}', '{}')"
    for statement in (
        "SELECT * FROM headrace_ddl.log",
        forged,
        "SELECT headrace_ddl.structure_of(1)",
        "CALL headrace_ddl.watch('{}')",
        "CREATE TABLE headrace_ddl.mine ()",
        "DROP SCHEMA headrace_ddl CASCADE",
        "DROP EVENT TRIGGER headrace_ddl_end",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            user.execute(statement.encode())
    recording.site.run(f"GRANT pg_write_all_data, pg_read_all_data TO {USER}")
    hidden = "UPDATE headrace_ddl.compared SET entry = 0"
    for statement in (forged, "DELETE FROM headrace_ddl.log", "UPDATE headrace_ddl.log SET content = '{}'", hidden):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="event triggers alone"):
            user.execute(statement.encode())
    assert recording.records() == []


def test_default_privileges_of_the_owner_do_not_open_the_log(
    request: pytest.FixtureRequest, make_site: Callable[[EmbeddedServer], Site]
) -> None:
    site = site_of_version(request, make_site, "18")
    site.run(f"DROP ROLE IF EXISTS {USER}; CREATE ROLE {USER}; {TABLE}")
    site.run(
        f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {USER}, PUBLIC; ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS"
        f" TO {USER}; ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO {USER}; ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON"
        f" FUNCTIONS TO {USER}"
    )
    try:
        site.prepare(DDL)
        assert row_of(
            site.run(
                f"SELECT has_schema_privilege('{USER}', 'headrace_ddl', 'USAGE'), has_table_privilege('{USER}',"
                f" 'headrace_ddl.log', 'INSERT'), has_function_privilege('{USER}', 'headrace_ddl.note()', 'EXECUTE'),"
                f" has_sequence_privilege('{USER}', 'headrace_ddl.log_number_seq', 'USAGE')"
            )
        ) == (False, False, False, False)
        assert site.prepare(DDL) == ()
        site.run(f"GRANT INSERT ON headrace_ddl.log TO {USER}")
        assert [each.split(";")[0] for each in site.prepare(DDL)] == ["CREATE SCHEMA headrace_ddl"]
        assert not row_of(site.run(f"SELECT has_table_privilege('{USER}', 'headrace_ddl.log', 'INSERT')"))[0]
        assert site.prepare(DDL) == ()
    finally:
        site.run(f"DROP OWNED BY {USER} CASCADE; DROP ROLE {USER}")


def test_functions_of_users_are_never_called_with_our_rights(
    recording: Recording, user: psycopg.Connection[Any]
) -> None:
    """Names are looked up in pg_catalog alone, whatever the user's search_path is."""
    body = "LANGUAGE plpgsql AS $$ BEGIN INSERT INTO own.caught VALUES (current_user); RETURN '{}'; END $$"
    user.execute(
        f"CREATE TABLE own.caught (by name); CREATE FUNCTION own.left(text, int) RETURNS text {body}; CREATE FUNCTION"
        f" own.current_setting(text) RETURNS text {body}; CREATE FUNCTION own.same(jsonb, text) RETURNS jsonb {body};"
        " CREATE OPERATOR own.-> (LEFTARG = jsonb, RIGHTARG = text, FUNCTION = own.same); CREATE OPERATOR own.- (LEFTARG ="
        " jsonb, RIGHTARG = text, FUNCTION = own.same); CREATE TABLE own.pg_class (oid oid, relname name, relnamespace"
        ' oid, relkind "char")'.encode()
    )
    recording.records()
    user.execute(
        "SET search_path = own, pg_catalog; CREATE TABLE own.t (id text DEFAULT own.left('x', 1)); ALTER TABLE own.t ADD"
        " COLUMN a int, DROP COLUMN id; RESET search_path"
    )
    assert len(recording.records()) == 2
    assert user.execute("SELECT * FROM own.caught").fetchall() == []


def test_statement_is_done_within_a_second_while_the_log_is_locked(recording: Recording) -> None:
    site = recording.site
    recording.run("CREATE INDEX i ON t (a)")
    with psycopg.connect(site.dsn) as locker:
        locker.execute("LOCK TABLE headrace_ddl.log IN ACCESS EXCLUSIVE MODE")
        slowest = []
        for name in ("c", "d", "e"):  # on a busy machine one of them may be slow for other reasons
            took = []
            for statement in (
                f"CREATE TABLE {name} (id int)",
                # it fires two triggers
                f"ALTER TABLE t DROP COLUMN IF EXISTS b, DROP COLUMN IF EXISTS {chr(ord(name) - 1)}, ADD COLUMN {name} int",
                f"CREATE INDEX {name}i ON t ({name})",
                f"DROP INDEX {name}i",
            ):
                began = time.monotonic()
                site.run(statement)
                took.append(time.monotonic() - began)
            slowest.append(max(took))
        assert min(slowest) < 1.0
        began = time.monotonic()
        site.run("CREATE TEMP TABLE v (id int); ALTER TABLE v ADD COLUMN f int; DROP TABLE v")
        assert time.monotonic() - began < 0.3, "temporary tables are not looked up in the log"
    assert recording.records() == []
    record = recording.one("ALTER TABLE t ADD COLUMN f int")
    assert columns(record["before"]).keys() == {"id", "a", "b"}, "the last record, which is older"
    record = recording.one("ALTER TABLE c ADD COLUMN f int")
    assert (record["before"], record["is_known"]) == (None, False)


@pytest.mark.parametrize(
    "damage",
    [
        "ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other",
        "ALTER TABLE headrace_ddl.log RENAME COLUMN relation TO other",
        "ALTER TABLE headrace_ddl.log RENAME TO other",
        "ALTER TABLE headrace_ddl.log ADD CHECK (false) NOT VALID",
        "DROP TABLE headrace_ddl.log",
        "UPDATE headrace_ddl.log SET content = 'damaged'",
        "ALTER SEQUENCE headrace_ddl.log_number_seq MAXVALUE 2",
    ],
)
def test_statement_succeeds_whatever_is_wrong_with_the_objects(recording: Recording, damage: str) -> None:
    site = recording.site
    site.run(damage)
    site.run(
        "ALTER TABLE t DROP COLUMN b, ADD COLUMN c int; CREATE INDEX i ON t (c); DROP INDEX i; CREATE TABLE u (id int)"
    )
    assert row_of(site.run("SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'c'")) == (
        1,
    )


def test_failure_is_recorded_with_its_statement(recording: Recording) -> None:
    recording.run("ALTER FUNCTION headrace_ddl.structure_of(oid) RENAME TO other")
    (record,) = recording.run("ALTER TABLE t ADD COLUMN c int")
    assert record == {"format": 1, "failed": "42883", "tag": "ALTER TABLE", "query": "ALTER TABLE t ADD COLUMN c int"}
    failed = failed_ddl_of(json.dumps(record).encode())
    assert failed is not None
    assert failed.ddl_text == "ALTER TABLE t ADD COLUMN c int"


def test_statement_whose_table_another_one_locks_leaves_a_record(recording: Recording) -> None:
    """An index is renamed without a lock on its table, and its definition cannot be read without one."""
    recording.run("CREATE INDEX i ON t (a)")
    with psycopg.connect(recording.site.dsn) as other:
        other.execute("ALTER TABLE t ADD COLUMN c int")
        (record,) = recording.run("ALTER INDEX i RENAME TO j")
        assert (record["failed"], record["query"]) == ("55P03", "ALTER INDEX i RENAME TO j")


def test_statement_succeeds_though_its_triggers_are_being_removed(site: Site) -> None:
    """A user's own event trigger is slow, and the functions behind ours must outlive it."""
    site.run(TABLE)
    site.prepare(DDL)
    site.run(
        "CREATE FUNCTION slow() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_advisory_xact_lock(1);"
        " PERFORM count(*) FROM pg_class; END $$; CREATE EVENT TRIGGER a ON ddl_command_end WHEN TAG IN ('ALTER"
        " TABLE') EXECUTE FUNCTION slow(); CREATE EVENT TRIGGER b ON sql_drop WHEN TAG IN ('ALTER TABLE') EXECUTE FUNCTION"
        " slow()"
    )
    failed: list[Exception] = []
    with psycopg.connect(site.dsn, autocommit=True) as user, psycopg.connect(site.dsn, autocommit=True) as holder:

        def alter() -> None:
            try:
                user.execute("ALTER TABLE t DROP COLUMN b, ADD COLUMN c int")
            except psycopg.Error as error:
                failed.append(error)

        def remove() -> None:
            site.source.remove("topo")

        holder.execute("SELECT pg_advisory_lock(1)")
        threads = [threading.Thread(target=alter), threading.Thread(target=remove)]
        threads[0].start()
        wait_until_waiting(site, user.info.backend_pid)
        threads[1].start()
        deadline = time.monotonic() + PATIENCE_S
        while site.run("SELECT FROM pg_event_trigger WHERE evtname LIKE 'headrace%'").fetchall():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        assert site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchall()
        holder.execute("SELECT pg_advisory_unlock(1)")
        for thread in threads:
            thread.join(PATIENCE_S)
    assert failed == []
    assert not site.run("SELECT FROM pg_namespace WHERE nspname = 'headrace_ddl'").fetchall()


def test_users_statements_succeed_while_recording_begins_and_ends(site: Site) -> None:
    site.run(f"{TABLE}; CREATE SCHEMA apart")
    failed: list[Exception] = []

    def work(number: int) -> None:
        with psycopg.connect(site.dsn, autocommit=True) as user:
            for _ in range(40):
                for statement in (
                    f"CREATE TABLE apart.w{number} (id int PRIMARY KEY, a int)",
                    f"ALTER TABLE apart.w{number} DROP COLUMN a, ADD COLUMN b bigint DEFAULT random()",
                    f"CREATE INDEX ON apart.w{number} (b)",
                    f"DROP TABLE apart.w{number}",
                ):
                    try:
                        user.execute(statement.encode())
                    except psycopg.Error as error:
                        failed.append(error)

    users = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for user in users:
        user.start()
    rounds = 0
    while any(user.is_alive() for user in users):
        for rules in (DDL, ALL):
            try:
                site.prepare(rules)
            except DatabaseUnavailable:
                continue
        rounds += 1
    for user in users:
        user.join()
    assert failed == []
    assert rounds > 1
