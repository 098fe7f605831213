"""DDL changes carried between two servers: the destination's table becomes the source's, rows included."""

from __future__ import annotations

import itertools

import psycopg
import pytest

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import quote
from headrace.lcr.table_name import TableName, literal
from tests.support.databases.ddl_pair import DdlPair, carried
from tests.support.values.hostile_names import HOSTILE
from tests.support.values.type_literals import LITERALS

pytestmark = [pytest.mark.postgres]


@pytest.mark.parametrize(
    "statements",
    [
        ["ADD note text", "ADD at timestamptz DEFAULT now()", "ADD n int NOT NULL DEFAULT 7"],
        [
            "ADD tags text[] DEFAULT '{a,\"b c\",NULL}'",
            "ADD m int[] DEFAULT '{{1,2},{3,4}}'",
            "ADD j jsonb DEFAULT '{\"a\": [1]}'",
        ],
        ["ADD u text UNIQUE CHECK (u <> '')", "ADD c text COLLATE \"C\" DEFAULT 'ü'"],
        ["ADD a int, ALTER a SET DEFAULT 5"],
        ["ADD a int DEFAULT 5", "ALTER a DROP DEFAULT"],
        ["ADD a int DEFAULT 5", "DROP a, ADD a int DEFAULT 6"],
        [
            "ALTER title TYPE text",
            "ALTER title SET DEFAULT 'x'",
            "ALTER title SET NOT NULL",
            "ALTER title DROP NOT NULL",
        ],
        ["ALTER title SET DEFAULT 'x'", "ALTER title TYPE varchar(30)", "ALTER title TYPE text"],
        ["ADD CONSTRAINT c CHECK (title <> '') NOT VALID", "VALIDATE CONSTRAINT c", 'RENAME CONSTRAINT c TO "C d"'],
        ["DROP CONSTRAINT jobs_pkey", "ALTER id DROP NOT NULL", "ADD PRIMARY KEY (title)", "DROP COLUMN id"],
        ["DROP CONSTRAINT jobs_pkey, ADD CONSTRAINT jobs_pkey PRIMARY KEY (title), ALTER id DROP NOT NULL"],
        ["ADD EXCLUDE USING btree (title WITH =) DEFERRABLE", "ADD UNIQUE NULLS NOT DISTINCT (title) INCLUDE (id)"],
        ["RENAME title TO name", "RENAME id TO title", "RENAME name TO id"],
    ],
    ids=lambda statements: statements[0],
)
def test_alterations_of_a_table_are_carried(pair: DdlPair, statements: list[str]) -> None:
    for statement in statements:
        assert carried(pair, f"ALTER TABLE hr.jobs {statement}")


@pytest.mark.parametrize(
    "statements",
    [
        [
            "CREATE UNIQUE INDEX i ON hr.jobs (title DESC, id) INCLUDE (id) WHERE id > 0",
            'ALTER INDEX hr.i RENAME TO "I j"',
        ],
        [
            'CREATE INDEX i ON hr.jobs (lower(title) COLLATE "C" text_pattern_ops) WITH (fillfactor = 70)',
            "DROP INDEX hr.i",
        ],
        [
            "CREATE INDEX i ON hr.jobs USING hash (title)",
            "ALTER INDEX hr.i SET (fillfactor = 50)",
            "ALTER INDEX hr.jobs_pkey RENAME TO k",
        ],
        ["CREATE UNIQUE INDEX i ON hr.jobs (title)", "ALTER TABLE hr.jobs ADD CONSTRAINT k UNIQUE USING INDEX i"],
        ["CREATE INDEX i ON hr.jobs (title)", "ALTER TABLE hr.jobs DROP title"],
        [
            "CREATE INDEX i ON hr.jobs (title)",
            "ALTER TABLE hr.jobs ALTER title TYPE text",
            "DROP INDEX hr.i; CREATE INDEX i ON hr.jobs (id)",
        ],
    ],
    ids=lambda statements: statements[0],
)
def test_indexes_are_carried(pair: DdlPair, statements: list[str]) -> None:
    for statement in statements:
        assert carried(pair, statement)


def test_renamed_key_column_keeps_the_key_that_others_refer_to(pair: DdlPair) -> None:
    pair.both(
        "CREATE TABLE hr.people (job int REFERENCES hr.jobs)",
        "CREATE VIEW hr.v AS SELECT id FROM hr.jobs",
        "ALTER TABLE hr.jobs REPLICA IDENTITY USING INDEX jobs_pkey, ADD CONSTRAINT c CHECK (id > 0)",
        "CREATE INDEX i ON hr.jobs (id)",
    )
    assert carried(pair, "ALTER TABLE hr.jobs RENAME id TO job") == [
        'ALTER TABLE ONLY "hr"."jobs" RENAME COLUMN "id" TO "job"'
    ]
    identity = pair.here.execute("SELECT relreplident::text FROM pg_catalog.pg_class WHERE oid = 'hr.jobs'::regclass")
    assert identity.fetchone() == ("i",)


def test_changed_type_takes_indexes_and_constraints_along(pair: DdlPair) -> None:
    pair.both(
        "ALTER TABLE hr.jobs ADD CONSTRAINT c CHECK (title <> 'x'), ADD UNIQUE (title), ALTER title SET DEFAULT 'd'",
        "CREATE INDEX i ON hr.jobs (title varchar_ops)",
    )
    ran = carried(pair, "ALTER TABLE hr.jobs ALTER title TYPE text")
    assert not any("CONSTRAINT" in each or "INDEX" in each for each in ran)


def test_index_of_the_destination_alone_is_not_lost_with_a_column(pair: DdlPair) -> None:
    pair.here.execute("CREATE INDEX own ON hr.jobs (title)")
    change = pair.change("ALTER TABLE hr.jobs DROP title")
    with pytest.raises(DataError, match='index "own"'):
        pair.apply(change)
    pair.here.execute("DROP INDEX hr.own")
    pair.apply(change)
    pair.assert_equal()


def test_foreign_key_is_left_out_and_its_column_is_not(pair: DdlPair) -> None:
    planned, _ = pair.apply(pair.change("ALTER TABLE hr.jobs ADD boss int REFERENCES hr.jobs (id)"))
    assert "not known which table" in "".join(planned.left_out)
    pair.here.execute("ALTER TABLE hr.jobs ADD FOREIGN KEY (boss) REFERENCES hr.jobs (id)")
    pair.assert_equal()
    assert carried(pair, "ALTER TABLE hr.jobs RENAME boss TO chief")
    assert carried(pair, "ALTER TABLE hr.jobs DROP chief")


@pytest.mark.parametrize(
    "statement",
    [
        "ADD r float8 DEFAULT random()",
        "ALTER title TYPE int USING length(title)",
        "ADD n serial",
        "ADD n int GENERATED ALWAYS AS IDENTITY",
        "ADD g int GENERATED ALWAYS AS (id + 1) STORED",
        "SET UNLOGGED",
        "RENAME TO tasks",
    ],
)
def test_refused_change_leaves_the_destination_as_it_was(pair: DdlPair, statement: str) -> None:
    before = pair.at_destination()
    planned, ran = pair.apply(pair.change(f"ALTER TABLE hr.jobs {statement}"))
    assert planned.refusal
    assert not ran
    assert pair.at_destination() == before


def test_destination_that_refuses_keeps_the_table(pair: DdlPair) -> None:
    pair.user.execute("UPDATE hr.jobs SET title = 'a'")
    pair.user.execute("DELETE FROM hr.jobs WHERE id = 2")
    pair.here.execute("UPDATE hr.jobs SET title = 'a'")
    before = pair.at_destination()
    with pytest.raises(psycopg.errors.UniqueViolation):
        pair.apply(pair.change("ALTER TABLE hr.jobs ADD UNIQUE (title), ADD n int"))
    assert pair.at_destination() == before


def test_hostile_names_are_carried(pair: DdlPair) -> None:
    for owner, name in itertools.pairwise((*HOSTILE, HOSTILE[0])):
        pair.use(TableName(owner, name))
        pair.both(f"CREATE SCHEMA {quote(owner)}")
        of = quote(name)
        pair.both(f"CREATE TABLE {pair.name} (id int)", f"INSERT INTO {pair.name} VALUES (1)")
        for statement in (
            f"ALTER TABLE {pair.name} ADD {of} text DEFAULT {literal(name)}",
            f"ALTER TABLE {pair.name} ADD CONSTRAINT {of} CHECK ({of} <> {literal(owner)})",
            f"CREATE INDEX {quote(owner)} ON {pair.name} ({of}) WHERE {of} <> {literal(name)}",
            f"ALTER INDEX {quote(owner)}.{quote(owner)} RENAME TO {quote('i' + owner[:30])}",
            f"ALTER TABLE {pair.name} RENAME id TO {quote(owner)}",
            f"ALTER TABLE {pair.name} RENAME CONSTRAINT {of} TO {quote('c' + owner[:30])}",
            f"ALTER TABLE {pair.name} DROP {of}",
        ):
            assert carried(pair, statement)


# ------------------------------------------------------------------ every type


def test_columns_of_every_type_are_carried_with_their_old_value(pair: DdlPair) -> None:
    count = 0
    for name, literals in LITERALS.items():
        if name == "regrole":
            continue  # no default may be one
        kind = f'pg_catalog."{name}"'
        values = [each for each in literals if _is_valid(pair, each, kind)]
        single = [f"ADD c{place} {kind} DEFAULT {literal(value)}" for place, value in enumerate(values)]
        arrays = [
            f"ADD a{place} {kind}[] DEFAULT ARRAY[{literal(value)}]::{kind}[]" for place, value in enumerate(values)
        ]
        carried(pair, f"ALTER TABLE hr.jobs {', '.join([*single, *arrays])}")
        drops = [f"DROP {letter}{place}" for letter in "ca" for place in range(len(values))]
        pair.both(f"ALTER TABLE hr.jobs {', '.join(drops)}")
        count += len(values)
    assert count > len(LITERALS)


def _is_valid(pair: DdlPair, value: str, kind: str) -> bool:
    """Return whether this version has the value."""
    row = pair.here.execute("SELECT pg_catalog.pg_input_is_valid(%s, %s)", (value, kind)).fetchone()
    assert row is not None
    return bool(row[0])
