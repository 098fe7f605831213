"""Columns converted between two servers: rows that the statement wrote anew are the same at both afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import DataError
from headrace.databases.ports import DDL_REFUSED, DdlOutcomeKind, MarkedColumn, MarkedPart, RowMark
from headrace.databases.postgres.connection import quote
from tests.support.databases.created_pair import CreatedPair
from tests.support.databases.destination_contract import APPLY
from tests.support.databases.statements import row_of

pytestmark = [pytest.mark.postgres]

INTS = ["0", "1", "-1", "32767", "-32768"]
BIG = [*INTS, "2147483647", "-2147483648"]
HUGE = [*BIG, "9223372036854775807", "-9223372036854775808", "9007199254740993", "16777217"]
NUMBERS = ["0.5", "1.5", "2.5", "-0.5", "-2.5", "12345678.985", "0.005", "-0.004999"]
TEXTS = ["''", "'a'", "'a  '", "'ü€𝄞'", "'İı'", "e'\\\\\\t\\n'", "' '"]
MOMENTS = ["'2000-01-01'", "'0044-03-15 BC'", "'infinity'", "'-infinity'", "'294276-12-31'", "'1969-12-31'"]
INSTANTS = [*MOMENTS, "'2026-03-29 02:30:00.123456'", "'1901-12-13 23:59:59.9999995'", "'2026-10-25 02:30:00.5'"]
JSON = ['\'{"b": 1.50, "a": [null, "ü"], "b": 2}\'', "'null'", "'  1e3'"]
USING = "USING c::"

CASES = {
    "integers": [
        ("smallint", "integer", INTS),
        ("smallint", "bigint", INTS),
        ("integer", "bigint", BIG),
        ("integer", "smallint", INTS),
        ("bigint", "integer", BIG),
        ("integer", "numeric(12,2)", BIG),
        ("bigint", "numeric", HUGE),
        ("bigint", "double precision", HUGE),
        ("integer", "real", [*BIG, "16777217"]),
        ("integer", "text", BIG),
        ("bigint", "varchar(20)", HUGE),
        ("smallint", "char(9)", INTS),
        ("integer", "boolean USING c::boolean", BIG),
        ("boolean", "integer USING c::integer", ["true", "false"]),
        ("real", "double precision", ["0.1", "'NaN'", "'-0'", "1e-45", "3.4e38", "'-infinity'"]),
    ],
    "numbers": [
        ("numeric", "numeric(12,2)", [*NUMBERS, "'NaN'"]),
        ("numeric(14,4)", "numeric(12,3)", NUMBERS),
        ("numeric(10,2)", "numeric(12,3)", NUMBERS),
        ("numeric", "integer", NUMBERS),
        ("numeric(20,0)", "bigint", HUGE),
        ("numeric", "text", [*NUMBERS, "1e-30", "1e30", "'infinity'"]),
    ],
    "texts": [
        ("varchar(20)", "varchar(10)", TEXTS),
        ("text", "varchar(5) USING c::varchar(5)", [*TEXTS, "'longer than that'"]),
        ("char(10)", "varchar(10)", TEXTS),
        ("char(10)", "text", TEXTS),
        ("text", "char(12)", TEXTS),
        ("char(5)", "char(8)", TEXTS),
        ("text", "integer USING c::integer", ["' 12 '", "'-7'"]),
        ("varchar(30)", "bigint USING CAST(c AS bigint)", ["'9223372036854775807'"]),
        ("text", "numeric(10,2) USING c::numeric(10,2)", ["'1.005'", "' 2e3'"]),
        (
            "text",
            "uuid USING c::uuid",
            ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'{a0eebc999c0b4ef8bb6d6bb9bd380a11}'"],
        ),
        ("text", "boolean USING c::boolean", ["'yes'", "'off'", "' t '"]),
        ("text", "jsonb USING c::jsonb", JSON),
        ("text", "json USING c::json", JSON),
        ("json", "jsonb", JSON),
        ("jsonb", "json", JSON),
        ("uuid", "text", ["'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'"]),
        ("boolean", "text", ["true", "false"]),
    ],
    "moments": [
        ("date", "timestamp", MOMENTS),
        ("date", "timestamp(0)", MOMENTS),
        ("timestamp", "date", INSTANTS),
        ("timestamp", "timestamp(3)", INSTANTS),
        ("timestamptz", "timestamptz(0)", INSTANTS),
    ],
    "moments in UTC": [
        ("timestamp", "timestamptz USING c AT TIME ZONE 'UTC'", INSTANTS),
        ("timestamptz", "timestamp USING (c AT TIME ZONE 'UTC')", INSTANTS),
    ],
}
# What users may have set when they run the statement; the destination's session has its own.
USERS = (
    "SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'German, DMY'; SET extra_float_digits = -15;"
    " SET IntervalStyle = 'sql_standard'; SET bytea_output = 'escape'; SET search_path = hr"
)


def rows(created: CreatedPair, name: str) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Return the rows of both sides, printed alike."""
    query = f"SELECT id, c::text, octet_length(c::text), md5(long), n FROM hr.{quote(name)} ORDER BY id".encode()
    found = []
    for connection in (created.user, created.admin):
        connection.execute("SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET extra_float_digits = 3")
        found.append(connection.execute(query).fetchall())
    return found[0], found[1]


def make(created: CreatedPair, name: str, kind: str, values: list[str]) -> None:
    """Make a table with these values, NULL, and values that are stored apart, at both."""
    of = f"hr.{quote(name)}"
    created.both(
        "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'",
        f"CREATE TABLE {of} (id int PRIMARY KEY, c {kind}, long text, n int DEFAULT 4)",
        f"ALTER TABLE {of} ALTER long SET STORAGE EXTERNAL",
        *(
            f"INSERT INTO {of} VALUES ({number}, {each}, repeat('ü{number}', 2000))"
            for number, each in enumerate(["NULL", *values])
        ),
    )


@pytest.mark.parametrize("family", CASES)
def test_converted_rows_are_the_same_at_both(created: CreatedPair, family: str) -> None:
    rewritten = 0
    for number, (before, after, values) in enumerate(CASES[family]):
        name = f"t{number}"
        make(created, name, before, values)
        created.user.execute(USERS.encode())
        change = created.rewritten(name, f"ALTER TABLE hr.{name} ALTER COLUMN c TYPE {after}")
        rewritten += '"rewriting"' in change.content
        (outcome,) = created.apply(change)
        if family == "moments in UTC" and created.version >= 18:
            # The session's time zone may have an abbreviation UTC of its own.
            assert (outcome.kind, "another zone" in outcome.reason) == (DdlOutcomeKind.NOT_APPLIED, True)
            continue
        assert outcome.kind is DdlOutcomeKind.APPLIED, (before, after, outcome.reason)
        there, here = rows(created, name)
        assert there == here, (before, after)
        assert len(here) == len(values) + 1
        created.assert_equal(name)
        (again,) = created.apply(change, scn=150)
        assert (again.kind, again.reason) == (DdlOutcomeKind.PASSED_OVER, "")
    assert rewritten == len(CASES[family]), "each case is one that writes rows anew"


def test_key_with_everything_that_hangs_on_it_is_widened(created: CreatedPair) -> None:
    """int to bigint: the primary key, its foreign keys, indexes, checks, the default, and the replica identity."""
    created.both(
        "CREATE TABLE hr.jobs (id serial PRIMARY KEY CHECK (id > 0), c int DEFAULT 7 NOT NULL, long text, n int UNIQUE)",
        "CREATE UNIQUE INDEX jobs_key ON hr.jobs (id, c)",
        "CREATE INDEX jobs_part ON hr.jobs ((id + 1)) WHERE id > 2",
        "ALTER TABLE hr.jobs REPLICA IDENTITY USING INDEX jobs_key",
        "CREATE TABLE hr.people (job int REFERENCES hr.jobs)",
        "INSERT INTO hr.jobs (n) SELECT generate_series(1, 1000)",
        "INSERT INTO hr.people SELECT generate_series(1, 1000)",
    )
    for statement in ("ALTER id TYPE bigint", "ALTER c TYPE bigint, ALTER n TYPE numeric(9,1)"):
        (outcome,) = created.apply(created.rewritten("jobs", f"ALTER TABLE hr.jobs {statement}"))
        assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.APPLIED, "")
        there, here = rows(created, "jobs")
        assert there == here
        created.assert_equal("jobs")
    identity = created.admin.execute("SELECT relreplident::text FROM pg_class WHERE oid = 'hr.jobs'::regclass")
    assert identity.fetchone() == ("i",)
    created.admin.execute("INSERT INTO hr.jobs (id) VALUES (9223372036854775806)")


def test_identity_column_is_widened(created: CreatedPair) -> None:
    created.both(
        "CREATE TABLE hr.jobs (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, c text, long text, n int)",
        "INSERT INTO hr.jobs (c) VALUES ('a'), ('b')",
    )
    (outcome,) = created.apply(created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER id TYPE bigint"))
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.APPLIED, "")
    there, here = rows(created, "jobs")
    assert there == here
    created.assert_equal("jobs")


def test_default_that_cannot_be_converted_is_replaced_first(created: CreatedPair) -> None:
    created.both(
        "CREATE TABLE hr.jobs (id int PRIMARY KEY, c text DEFAULT '5', long text, n int)",
        "INSERT INTO hr.jobs VALUES (1, '7')",
    )
    change = created.rewritten(
        "jobs",
        "ALTER TABLE hr.jobs ALTER c DROP DEFAULT, ALTER c TYPE int USING c::int, ALTER c SET DEFAULT 6, ALTER c SET NOT"
        " NULL",
    )
    (outcome,) = created.apply(change)
    assert outcome.kind is DdlOutcomeKind.APPLIED, outcome.reason
    created.assert_equal("jobs")
    there, here = rows(created, "jobs")
    assert there == here == [(1, "7", 1, None, None)]


@pytest.mark.parametrize(
    "column",
    [
        "g int GENERATED ALWAYS AS (n * 2) STORED",
        "g text COLLATE \"C\" GENERATED ALWAYS AS (upper(c) || id) STORED NOT NULL CHECK (g <> '') UNIQUE",
    ],
)
def test_stored_column_is_computed_at_both(created: CreatedPair, column: str) -> None:
    make(created, "jobs", "text", TEXTS)
    created.both("UPDATE hr.jobs SET c = 'null' WHERE c IS NULL")
    (outcome,) = created.apply(created.rewritten("jobs", f"ALTER TABLE hr.jobs ADD {column}", reasons=2))
    assert (outcome.kind, outcome.reason) == (DdlOutcomeKind.APPLIED, "")
    query = b"SELECT id, c, n, g FROM hr.jobs ORDER BY id"
    assert created.user.execute(query).fetchall() == created.admin.execute(query).fetchall()
    created.assert_equal("jobs")


def test_stored_column_of_a_users_function_is_recorded_only(created: CreatedPair) -> None:
    make(created, "jobs", "text", TEXTS)
    created.both("CREATE FUNCTION hr.f(text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT $1'")
    change = created.rewritten("jobs", "ALTER TABLE hr.jobs ADD g text GENERATED ALWAYS AS (hr.f(c)) STORED", reasons=2)
    (outcome,) = created.apply(change)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "may do anything" in outcome.reason


@pytest.mark.parametrize("column", ["r real", "d double precision", "b bytea"])
def test_generated_column_of_a_value_that_settings_print_is_recorded_only(created: CreatedPair, column: str) -> None:
    created.both(f"CREATE TABLE hr.jobs (id int PRIMARY KEY, {column})", "INSERT INTO hr.jobs VALUES (1, '1')")
    name = column.split(maxsplit=1)[0]
    change = created.rewritten(
        "jobs", f"ALTER TABLE hr.jobs ADD g text GENERATED ALWAYS AS ({name}::text) STORED", reasons=2
    )
    (outcome,) = created.apply(change)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "setting" in outcome.reason


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "expression": ("ALTER TABLE hr.jobs ALTER n TYPE bigint USING n * 2", {}),
    "same type": ("ALTER TABLE hr.jobs ALTER n TYPE int USING n * 2", {}),
    "beside another column": ("ALTER TABLE hr.jobs ALTER n TYPE bigint, ALTER c TYPE text USING upper(c)", {}),
    "function": ("ALTER TABLE hr.jobs ALTER n TYPE bigint", {"query": "SELECT hr.migrate()"}),
    "function with such a text": ("ALTER TABLE hr.jobs ALTER n TYPE bigint", {"is_nested": True}),
    "several": ("ALTER TABLE hr.jobs ALTER n TYPE bigint; SELECT 1", {}),
    "cut": ("ALTER TABLE hr.jobs ALTER n TYPE bigint" + " " * 65536 + "USING n * 2", {}),
    "enumerated type": ("ALTER TABLE hr.jobs ALTER c TYPE hr.mood USING c::hr.mood", {}),
    "domain with a check": ("ALTER TABLE hr.jobs ALTER n TYPE hr.score", {}),
    "default of each row": ("ALTER TABLE hr.jobs ADD u uuid DEFAULT gen_random_uuid()", {"reasons": 2}),
    "serial": ("ALTER TABLE hr.jobs ADD u serial", {"reasons": 2}),
    "time zone of the session": ("ALTER TABLE hr.jobs ALTER at TYPE timestamptz", {}),
    "date style of the session": ("ALTER TABLE hr.jobs ALTER d TYPE date USING d::date", {}),
    "a cast of users": ("ALTER TABLE hr.jobs ALTER n TYPE bigint", {"casts": True}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_uncertain_rewriting_is_recorded_only(created: CreatedPair, name: str) -> None:
    statement, attributes = REFUSED[name]
    created.both(
        "CREATE TYPE hr.mood AS ENUM ('a', 'b'); CREATE DOMAIN hr.score AS bigint CHECK (VALUE > 0)",
        "CREATE TABLE hr.jobs (id int PRIMARY KEY, c text, n int, at timestamp, d text)",
        "INSERT INTO hr.jobs VALUES (1, 'a', 2, '2026-01-01', '2026-01-02')",
    )
    created.user.execute("SET TimeZone = 'Asia/Tokyo'")
    change = created.rewritten("jobs", statement, **{"query": statement[:65536], **attributes})
    assert '"rewriting"' in change.content
    was = created.at_destination("jobs")
    (outcome,) = created.apply(change)
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert outcome.reason.startswith("the source wrote the table's rows anew")
    assert created.at_destination("jobs") == was


def test_cast_of_users_at_the_destination_is_recorded_only(created: CreatedPair) -> None:
    make(created, "jobs", "text", ["'1'"])
    created.admin.execute("CREATE FUNCTION hr.f(text) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 5'")
    created.admin.execute("CREATE CAST (text AS int) WITH FUNCTION hr.f(text)")
    (outcome,) = created.apply(created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE int USING c::int"))
    assert outcome.kind is DdlOutcomeKind.NOT_APPLIED
    assert "CREATE CAST" in outcome.reason


def test_conversion_that_rows_here_refuse_leaves_everything(created: CreatedPair) -> None:
    make(created, "jobs", "bigint", ["1"])
    created.admin.execute("UPDATE hr.jobs SET c = 3000000000 WHERE id = 1")
    was = created.at_destination("jobs")
    change = created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE int")
    with pytest.raises(DataError, match="out of range") as caught:
        created.apply(change)
    assert DDL_REFUSED in caught.value.context
    assert created.at_destination("jobs") == was
    created.admin.execute("UPDATE hr.jobs SET c = 1 WHERE id = 1")
    assert created.apply(change)[0].kind is DdlOutcomeKind.APPLIED


def test_view_at_the_destination_alone_refuses_the_conversion(created: CreatedPair) -> None:
    make(created, "jobs", "int", ["1"])
    created.admin.execute("CREATE VIEW hr.v AS SELECT c FROM hr.jobs")
    change = created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE bigint")
    with pytest.raises(DataError, match="used by a view or rule") as caught:
        created.apply(change)
    skip = caught.value.hint
    created.admin.execute(skip[skip.index("INSERT INTO headrace.ddl_skip") :].partition(";")[0].encode())
    assert created.apply(change)[0].kind is DdlOutcomeKind.SKIPPED


# --------------------------------------------------------------------------- marks

FILE = 5


def marked(created: CreatedPair, name: str) -> tuple[str, RowMark]:
    """Record a mark of a table as a copy would; return its identity and the mark."""
    number = created.number(name)
    mark = RowMark(
        columns={"c": MarkedColumn(number=2, stamp="x1", type_name="int4")},
        parts={str(number): MarkedPart(owner="hr", name=name, file=created.file(name))},
    )
    identity = f"1.2.{number}.7"
    created.destination.record_row_marks(created.topology, APPLY, created.epoch, "a", {identity: mark})
    return identity, mark


def now(created: CreatedPair, identity: str) -> RowMark:
    return created.destination.row_marks(created.topology, APPLY, "a")[identity]


def test_mark_takes_over_the_new_file_with_the_rows(created: CreatedPair) -> None:
    """Whatever ends the transaction before its commit, both stay as they were."""
    make(created, "jobs", "int", ["1"])
    identity, mark = marked(created, "jobs")
    change = created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE bigint")
    was = created.at_destination("jobs")
    created.session.begin()
    assert created.session.change_table(change, created.place()).kind is DdlOutcomeKind.APPLIED
    created.session.rollback()
    assert (now(created, identity), created.at_destination("jobs")) == (mark, was)
    created.session.begin()
    created.session.savepoint()
    created.session.change_table(change, created.place())
    created.session.rollback_to_savepoint()
    created.session.commit([], 0)
    assert (now(created, identity), created.at_destination("jobs")) == (mark, was)
    created.apply(change)
    found = now(created, identity)
    assert found.parts[str(created.number("jobs"))].file == created.file("jobs")
    assert found.columns["c"].type_name == "int8"


def test_mark_stays_where_something_else_wrote_rows_anew(created: CreatedPair) -> None:
    make(created, "jobs", "int", ["1"])
    identity, mark = marked(created, "jobs")
    created.user.execute("ALTER TABLE hr.jobs ALTER c TYPE int USING c * 2")  # in no record
    created.apply(created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE bigint"))
    assert now(created, identity) == mark


def test_mark_stays_for_what_was_there_already_and_for_error_transactions(created: CreatedPair) -> None:
    make(created, "jobs", "int", ["1"])
    identity, mark = marked(created, "jobs")
    change = created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE bigint")
    created.apply(change, is_in_order=False)
    assert now(created, identity) == mark
    created.admin.execute("ALTER TABLE hr.jobs ALTER c TYPE int")
    created.admin.execute("ALTER TABLE hr.jobs ALTER c TYPE bigint")
    assert created.apply(change, scn=150)[0].kind is DdlOutcomeKind.PASSED_OVER
    assert now(created, identity) == mark


def test_driver_does_not_wait_for_an_open_transaction_to_record_a_mark(created: CreatedPair) -> None:
    """That transaction may need the driver for its end."""
    make(created, "jobs", "int", ["1"])
    identity, mark = marked(created, "jobs")
    change = created.rewritten("jobs", "ALTER TABLE hr.jobs ALTER c TYPE bigint")
    created.session.begin()
    created.session.change_table(change, created.place())
    with pytest.raises(Exception, match="lock timeout"):
        created.destination.record_row_marks(created.topology, APPLY, created.epoch, "a", {identity: mark})
    created.session.commit([], 0)
    other = RowMark(parts={str(created.number("jobs")): MarkedPart(owner="hr", name="jobs", file=1)})
    created.destination.record_row_marks(
        created.topology, APPLY, created.epoch, "a", {identity: other}, was={identity: mark}
    )
    assert now(created, identity).parts[str(created.number("jobs"))].file == created.file("jobs")
    assert row_of(created.admin.execute("SELECT count(*) FROM hr.jobs"))[0] == 2
