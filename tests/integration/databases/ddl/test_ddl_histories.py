"""Random DDL at a source: the destination's table stays the source's, with whatever is carried and whatever is not.

A statement that the source refuses changes nothing. What is not replicated is run at the destination as it was run at
the source, as an operator would, and the rows are copied.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest

from headrace.base.errors import DataError
from headrace.databases.postgres.connection import quote
from headrace.databases.postgres.ddl.planning import plan_changes
from headrace.databases.postgres.source.ddl.objects import INSTALL
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import Delta, PartKind, Structure, elements
from headrace.lcr.table_name import TableName
from tests.support.databases.ddl_pair import DdlPair
from tests.support.session.seeds import scaled, seeds
from tests.support.values.hostile_names import HOSTILE

pytestmark = [pytest.mark.postgres]

NAMES = ["a", "B c", 'q"t', "é漢", HOSTILE[1], "id2", "x", "y"]
TYPES = [
    ("integer", ["0", "5", "NULL", "1 + 1"]),
    ("text", ["'x'", "''", "current_setting('TimeZone')", "'it''s \\'"]),
    ("varchar(5)", ["'x'", "'abcde'"]),
    ("varchar(20)", ["'x'"]),
    ('text COLLATE "C"', ["'ü'"]),
    ("numeric(10,2)", ["1.5"]),
    ("numeric(12,2)", ["1.50"]),
    ("timestamptz", ["now()", "'2026-01-01 00:00:00+01'", "CURRENT_TIMESTAMP + '1 day'::interval"]),
    ("timestamp", ["'2026-01-01'", "LOCALTIMESTAMP"]),
    ("interval", ["'1 day 2 hours'"]),
    ("jsonb", ["'{\"a\": 1}'"]),
    ("text[]", ["'{a,\"b c\",NULL}'"]),
    ("box", ["'(2,2),(0,0)'"]),
    ("bytea", ["'\\xff'"]),
    ('hr."My mood"', ["'so so'"]),
    ('hr."Plain text"', ["'x'"]),
    ("float8", ["0.1", "'NaN'", "random()"]),
]
# Types that change into each other without new rows.
ALIKE = ["varchar(5)", "varchar(20)", "text", 'text COLLATE "C"', 'hr."Plain text"', "numeric(10,2)", "numeric(12,2)"]
# Several statements in one record leave that open.
UNDECIDED = "may have exchanged their names"


class Statements:
    """Random statements that fit the source's table as it is; the source may refuse them."""

    def __init__(self, pair: DdlPair, rng: random.Random) -> None:
        self.pair, self.rng = pair, rng
        self.actions: list[Callable[[Structure], str]] = [
            *[self._add] * 5,
            *[self._drop] * 3,
            *[self._rename] * 3,
            *[self._type] * 4,
            *[self._default] * 2,
            *[self._not_null] * 2,
            *[self._add_constraint] * 4,
            *[self._constraint] * 3,
        ]

    def next(self) -> str:
        """Return one."""
        structure = self.pair.at_source()
        assert structure is not None
        if self.rng.random() < 0.3:
            return self._index(structure)
        count = 1 if self.rng.random() < 0.8 else 2
        return self._alter(", ".join(self.rng.choice(self.actions)(structure) for _ in range(count)))

    def _alter(self, action: str) -> str:
        return f"ALTER TABLE {self.pair.name} {action}"

    def _name(self) -> str:
        return quote(self.rng.choice(NAMES))

    def _column(self, structure: Structure) -> str:
        names = [part.name for part in structure.columns if part.name != "id" or self.rng.random() < 0.1]
        return quote(self.rng.choice(names or ["id"]))

    def _type_and_default(self) -> tuple[str, str]:
        name, defaults = self.rng.choice(TYPES)
        return name, self.rng.choice(defaults)

    def _add(self, _: Structure) -> str:
        name, default = self._type_and_default()
        words = ["ADD", self._name(), name]
        words += [f"DEFAULT {default}"] if self.rng.random() < 0.6 else []
        words += [word for word in ("NOT NULL", "UNIQUE") if self.rng.random() < 0.2]
        return " ".join(words)

    def _drop(self, structure: Structure) -> str:
        return f"DROP {self._column(structure)}"

    def _rename(self, structure: Structure) -> str:
        return f"RENAME {self._column(structure)} TO {self._name()}"

    def _type(self, structure: Structure) -> str:
        return f"ALTER {self._column(structure)} TYPE {self.rng.choice(ALIKE)}"

    def _default(self, structure: Structure) -> str:
        column = self._column(structure)
        return (
            f"ALTER {column} SET DEFAULT {self._type_and_default()[1]}"
            if self.rng.random() < 0.7
            else f"ALTER {column} DROP DEFAULT"
        )

    def _not_null(self, structure: Structure) -> str:
        return f"ALTER {self._column(structure)} {self.rng.choice(['SET', 'DROP'])} NOT NULL"

    def _add_constraint(self, structure: Structure) -> str:
        column, other = self._column(structure), self._column(structure)
        return self.rng.choice(
            [
                f"ADD CONSTRAINT {self._name()} CHECK ({column} IS NOT NULL OR id > 0)",
                f"ADD CONSTRAINT {self._name()} CHECK (length({column}::text) < 100 OR {other} IS NULL) NOT VALID",
                f"ADD CONSTRAINT {self._name()} UNIQUE (id, {column})",
                f"ADD CONSTRAINT {self._name()} EXCLUDE USING btree (id WITH =) WHERE ({column} IS NOT NULL) DEFERRABLE",
                f"ADD CONSTRAINT {self._name()} PRIMARY KEY (id)",
                f"ADD UNIQUE (id) INCLUDE ({column})",
            ]
        )

    def _constraint(self, structure: Structure) -> str:
        constraint = quote(self.rng.choice([part.name for part in structure.constraints] or ["none"]))
        index = quote(self.rng.choice([part.name for part in structure.indexes] or ["none"]))
        return self.rng.choice(
            [
                f"DROP CONSTRAINT {constraint}",
                f"RENAME CONSTRAINT {constraint} TO {self._name()}",
                f"VALIDATE CONSTRAINT {constraint}",
                f"ADD CONSTRAINT {self._name()} UNIQUE USING INDEX {index}",
            ]
        )

    def _index(self, structure: Structure) -> str:
        of, column = self.pair.name, self._column(structure)
        names = [key.name for key in elements(structure) if key.kind is not PartKind.COLUMN] or ["none"]
        index = f"{quote(self.pair.table.owner)}.{quote(self.rng.choice(names))}"
        return self.rng.choice(
            [
                f"CREATE INDEX {self._name()} ON {of} ({column} DESC, id)",
                f"CREATE UNIQUE INDEX {self._name()} ON {of} (id) INCLUDE ({column})",
                f"CREATE INDEX {self._name()} ON {of} (id) WHERE {column} IS NOT NULL",
                f"CREATE INDEX {self._name()} ON {of} (lower({column}), ({column} || 'x'))",
                f"CREATE INDEX {self._name()} ON {of} USING hash ({column}) WITH (fillfactor = 60)",
                f"CREATE INDEX ON {of} ({column})",
                f"DROP INDEX {index}",
                f"ALTER INDEX {index} RENAME TO {self._name()}",
                f"ALTER INDEX {index} SET (fillfactor = {self.rng.randint(50, 90)})",
            ]
        )


class History:
    """One history of both tables.

    Args:
        pair: the tables.
        seed: of the statements.
    """

    def __init__(self, pair: DdlPair, seed: int) -> None:
        self.pair, self.rng = pair, random.Random(seed)
        self.statements = Statements(pair, self.rng)
        self.ids = itertools.count(10)
        self.outcomes: Counter[str] = Counter()

    def run(self, wanted: int, most: int) -> list[str]:
        """Run statements that the source accepts; return them.

        Args:
            wanted: how many are tried.
            most: how many may be accepted.
        """
        accepted: list[str] = []
        for _ in range(wanted):
            statement = self.statements.next()
            try:
                self.pair.user.execute(statement.encode())
            except psycopg.Error:
                continue
            accepted.append(statement)
            if len(accepted) == most:
                break
        return accepted

    def carry(self, record: DdlRecord, accepted: list[str]) -> None:
        """Carry one record.

        Args:
            record: of the statements.
            accepted: the statements.
        """
        pair = self.pair
        try:
            planned, ran = pair.apply(record)
        except DataError as error:
            if UNDECIDED not in error.message:
                raise
            planned, ran = None, []
        if planned is None or planned.refusal:
            self.outcomes["refused"] += 1
            for statement in accepted:
                pair.here.execute(statement.encode())
            pair.copy_rows()
        else:
            self.outcomes["made" if ran else "passed over"] += 1
            again = plan_changes(record, pair.at_destination(), pair.version)
            assert not again.refusal
            assert not again.has_work or _has_column_again(record.delta)
        pair.assert_equal()

    def insert(self) -> None:
        """Insert a row at the source, and the same row at the destination."""
        statement = f"INSERT INTO {self.pair.name} AS t (id) VALUES ({next(self.ids)}) RETURNING t::pg_catalog.text"
        try:
            found = self.pair.there.execute(statement.encode()).fetchone()
        except psycopg.Error:
            return  # a column takes no NULL, a check refuses it, or `id` was dropped
        assert found is not None
        self.pair.add_rows([found[0]])


def _has_column_again(delta: Delta) -> bool:
    dropped = {part.key for part in delta.dropped if part.key.kind is PartKind.COLUMN}
    return any(part.key in dropped for part in delta.added)


@pytest.fixture
def pair(make_pair: Callable[[TableName], DdlPair]) -> DdlPair:
    found = make_pair(TableName("hr", HOSTILE[4]))
    found.both(
        "CREATE TYPE hr.\"My mood\" AS ENUM ('so so')",
        'CREATE DOMAIN hr."Plain text" AS text',
        f"CREATE TABLE {found.name} (id integer NOT NULL, a integer DEFAULT 3, \"B c\" varchar(5) DEFAULT 'b')",
        f"INSERT INTO {found.name} VALUES (1, 1, 'x'), (2, 2, NULL)",
    )
    return found


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("several statements in a record", test=1, soak=8))
def test_several_statements_in_one_record_are_carried(pair: DdlPair, seed: int) -> None:
    """The statements whose record was lost are in the record of the next one."""
    history = History(pair, seed)
    for _ in range(scaled(test=120, soak=200)):
        before, file = pair.at_source(), pair.file(pair.there)
        accepted = history.run(wanted=8, most=history.rng.randint(1, 4))
        history.carry(pair.record(before, file, query="; ".join(accepted)), accepted)
        history.insert()
    assert history.outcomes["made"] > history.outcomes["refused"]


class Log:
    """The records that the source's event triggers write.

    Args:
        pair: its source gets them.
    """

    def __init__(self, pair: DdlPair) -> None:
        self.pair, self.number = pair, 0
        pair.there.execute("CREATE SCHEMA headrace_ddl")
        pair.there.execute(INSTALL.encode())
        pair.there.execute(
            f"CALL headrace_ddl.watch(ARRAY['{pair.name.replace(chr(39), chr(39) * 2)}'::regclass])".encode()
        )
        list(self.new())

    def new(self) -> Iterator[DdlRecord]:
        """Yield the records since the last call."""
        query = "SELECT number, content FROM headrace_ddl.log WHERE number > %s ORDER BY number"
        for number, content in self.pair.there.execute(query, (self.number,)).fetchall():
            self.number = number
            if '"base"' not in content:
                yield DdlRecord.of(content)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("records of statements", test=1, soak=8))
def test_statements_are_carried_by_their_records(pair: DdlPair, seed: int) -> None:
    history, log = History(pair, seed), Log(pair)
    for _ in range(scaled(test=100, soak=400)):
        before = pair.at_source()
        accepted = history.run(wanted=5, most=1)
        records = list(log.new())
        assert records or pair.at_source() == before
        for record in records:
            history.carry(record, accepted)
        history.insert()
    assert history.outcomes["made"] > history.outcomes["refused"]
