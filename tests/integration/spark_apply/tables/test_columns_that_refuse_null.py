"""Columns that the source has dropped and that refuse NULL at the destination: the printed fix works, apply continues,
and both sides are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.session.matrices import cases
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A table of both sides, and the change at the source.

    Args:
        table: its definition at both sides.
        alter: the source's ALTER.
        printed: the printed statement, without remarks.
        after: the statement that finally makes the tables equal there.
    """

    table: str
    alter: str
    printed: str
    after: str = "ALTER TABLE p DROP COLUMN b"


P = 'ALTER TABLE "public"."p"'
CASES = {
    "not null": Case(
        table="CREATE TABLE p (id int PRIMARY KEY, b int NOT NULL, v text)",
        alter="ALTER TABLE p DROP COLUMN b",
        printed=f'{P} ALTER COLUMN "b" DROP NOT NULL;',
    ),
    "part of the key": Case(
        table="CREATE TABLE p (id int, b int, v text, PRIMARY KEY (id, b))",
        alter="ALTER TABLE p DROP CONSTRAINT p_pkey, DROP COLUMN b, ADD PRIMARY KEY (id)",
        printed=f'{P} DROP CONSTRAINT "p_pkey", ALTER COLUMN "b" DROP NOT NULL, ADD PRIMARY KEY ("id");',
    ),
    "the key": Case(
        table="CREATE TABLE p (id int NOT NULL, b int PRIMARY KEY, v text)",
        alter="ALTER TABLE p DROP COLUMN b, ADD PRIMARY KEY (id)",
        printed=f'{P} DROP CONSTRAINT "p_pkey", ALTER COLUMN "b" DROP NOT NULL, ADD PRIMARY KEY ("id");',
    ),
    "a key that others refer to": Case(
        table="CREATE TABLE p (id int, b int, v text, PRIMARY KEY (id, b));"
        "CREATE TABLE q (id int PRIMARY KEY, p int, b int, CONSTRAINT to_p FOREIGN KEY (p, b) REFERENCES p)",
        alter="ALTER TABLE p DROP COLUMN b CASCADE, ADD PRIMARY KEY (id)",
        printed='ALTER TABLE "public"."q" DROP CONSTRAINT "to_p";\n'
        f'{P} DROP CONSTRAINT "p_pkey", ALTER COLUMN "b" DROP NOT NULL, ADD PRIMARY KEY ("id");',
    ),
    "a domain": Case(
        table="CREATE DOMAIN few AS numeric(5, 2) NOT NULL; CREATE DOMAIN fewer AS few CHECK (value > 0);"
        "CREATE TABLE p (id int PRIMARY KEY, b fewer, v text)",
        alter="ALTER TABLE p DROP COLUMN b",
        printed=f'{P} ALTER COLUMN "b" TYPE numeric(5,2), ALTER COLUMN "b" DROP NOT NULL;',
    ),
    "a domain in a key": Case(
        table="CREATE DOMAIN few AS int NOT NULL; CREATE TABLE p (id int, b few, v text, PRIMARY KEY (b, id))",
        alter="ALTER TABLE p DROP COLUMN b, ADD PRIMARY KEY (id)",
        printed=f'{P} DROP CONSTRAINT "p_pkey", ALTER COLUMN "b" TYPE int4, ALTER COLUMN "b" DROP NOT NULL,'
        ' ADD PRIMARY KEY ("id");',
    ),
    "the replica identity": Case(
        table="CREATE TABLE p (id int PRIMARY KEY, b int NOT NULL, v text); CREATE UNIQUE INDEX p_b ON p (b);"
        "ALTER TABLE p REPLICA IDENTITY USING INDEX p_b",
        alter="ALTER TABLE p DROP COLUMN b; ALTER TABLE p REPLICA IDENTITY DEFAULT",
        printed=f'{P} REPLICA IDENTITY FULL;\n{P} ALTER COLUMN "b" DROP NOT NULL;',
    ),
}


def hint_of_pause(pair: Pair, engine: Any) -> str:
    """Apply all commits until the engine pauses for an operator; return its hint."""
    pair.redo.catch_up()
    engine.batches = list(pair.redo.mine(pair.redo.miner()))
    engine.subscribe()
    while not engine.is_paused:
        engine.step()
    assert engine.reader.unfit is not None
    return engine.reader.unfit.hint or ""


@pytest.mark.parametrize("case", cases(CASES, core=CASES.keys() - {"part of the key", "the key", "a domain in a key"}))
def test_printed_fix_lets_rows_omit_the_column(pair: Pair, case: Case) -> None:
    pair.create(case.table, case.table)
    pair.run("INSERT INTO p (id, b, v) VALUES (1, 1, 'before'), (2, 2, 'before')")
    engine = pair.apply()
    pair.run(case.alter, "INSERT INTO p VALUES (3, 'behind')", "UPDATE p SET v = 'changed' WHERE id = 1")
    pair.run("DELETE FROM p WHERE id = 2")
    hint = hint_of_pause(pair, engine)
    assert "\n".join(line.partition(" -- ")[0] for line in hint.splitlines()) == case.printed
    pair.there.execute(hint.encode())
    engine.run()
    assert pair.errors() == ()
    pair.assert_same()
    pair.there.execute(case.after.encode())
    pair.run("INSERT INTO p VALUES (4, 'later')", "UPDATE p SET v = 'again' WHERE id = 3")
    pair.more(engine)
    assert pair.errors() == ()
    pair.assert_same("SELECT * FROM p ORDER BY 1")


def test_no_alter_is_printed_for_a_column_of_the_partition_key(pair: Pair) -> None:
    """No primary key can be without it, and no part of a primary key is NULL."""
    pair.create(
        "CREATE TABLE p (id int, b int, v text, PRIMARY KEY (id, b))",
        "CREATE TABLE p (id int, b int, v text, PRIMARY KEY (id, b)) PARTITION BY LIST (b);"
        "CREATE TABLE p_1 PARTITION OF p DEFAULT",
    )
    pair.run("ALTER TABLE p DROP COLUMN b, ADD PRIMARY KEY (id)", "INSERT INTO p VALUES (3, 'new')")
    pair.redo.catch_up()
    (version, *_) = [table for batch in pair.redo.mine(pair.redo.miner()) for table in batch.tables]
    (fix, *_) = [found.fix for found in pair.destination.preflight_tables([version]) if found.is_error]
    assert fix.startswith('"public"."p" is partitioned by "b", which the source does not have')
    assert "ALTER" not in fix.partition("then")[0]


def test_printed_key_has_every_column_of_the_partition_key(pair: Pair) -> None:
    pair.create(
        "CREATE TABLE p (id int, region text, extra int, PRIMARY KEY (id, region, extra))",
        "CREATE TABLE p (id int, region text, extra int, PRIMARY KEY (id, region, extra)) PARTITION BY LIST (region);"
        "CREATE TABLE p_1 PARTITION OF p DEFAULT",
    )
    engine = pair.apply()
    pair.run("ALTER TABLE p DROP COLUMN extra, ADD PRIMARY KEY (id)", "INSERT INTO p VALUES (3, 'north')")
    hint = hint_of_pause(pair, engine)
    assert 'ADD PRIMARY KEY ("id", "region")' in hint
    pair.there.execute(hint.encode())
    engine.run()
    assert pair.errors() == ()
    assert pair.there.execute("SELECT id, region FROM p").fetchall() == [(3, "north")]
