"""Apply's statements for tables of any kind, on real servers.

Covers computed keys, virtual columns, identities, tables without a key or without stored columns, the maximum number of
columns, partitions, and a TRUNCATE in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.session.seeds import scaled, seed_of
from tests.support.ways.postgres_pair import Pair

pytestmark = pytest.mark.postgres

_TYPES = {
    "smallint": "({0} % 30000)::smallint",
    "int": "{0}",
    "text": "'t' || {0}",
    "numeric(12,2)": "{0} / 4.0",
    "jsonb": "jsonb_build_object('a', {0})",
    "int[]": "ARRAY[{0}, NULL]",
    "point": "point({0}, 1)",
}
_KEYABLE = ("int", "text", "numeric(12,2)")


@dataclass(frozen=True)
class _Table:
    """A table and the actions on it.

    Args:
        columns: definitions, without names.
        key: positions; empty: no key.
        replica: FULL, DEFAULT, the key as an index, or NOTHING, which takes neither UPDATE nor DELETE.
        actions: of INSERT, UPDATE, DELETE and TRUNCATE, with a column and a number.
        further: columns that make it wide.
        parted: position of the column that it is partitioned by; None: not partitioned.
    """

    columns: tuple[str, ...]
    key: tuple[int, ...]
    replica: str
    actions: tuple[tuple[str, int, int], ...]
    further: int
    parted: int | None = None

    @property
    def definitions(self) -> list[tuple[str, str]]:
        # Their row fits into a page with all of them.
        return [(f"c{place}", column) for place, column in enumerate(self.columns)] + [
            (f"w{number}", "smallint") for number in range(self.further)
        ]

    def made(self, name: str) -> str:
        key = ", ".join(f"c{place}" for place in self.key)
        columns = ", ".join(
            [f"{column} {kind}" for column, kind in self.definitions] + ([f"PRIMARY KEY ({key})"] if key else [])
        )
        if self.parted is None:
            return f"CREATE TABLE {name} ({columns})"
        parts = [
            f"CREATE TABLE {part} PARTITION OF {name} FOR VALUES WITH (MODULUS 2, REMAINDER {rest})"
            for rest, part in enumerate(self._stored(name))
        ]
        return "; ".join([f"CREATE TABLE {name} ({columns}) PARTITION BY HASH (c{self.parted})", *parts])

    def identity(self, name: str) -> str:
        """Return the statements for each stored table: partitions do not inherit the identity."""
        return "; ".join(
            f"ALTER TABLE {each} REPLICA IDENTITY {f'USING INDEX {each}_pkey' if self.replica == 'INDEX' else self.replica}"
            for each in self._stored(name)
        )

    def _stored(self, name: str) -> list[str]:
        return [name] if self.parted is None else [f"{name}_p0", f"{name}_p1"]

    def statements(self, name: str) -> list[str]:
        plain = {column: kind for column, kind in self.definitions if kind in _TYPES}
        always = [column for column, kind in self.definitions if "GENERATED ALWAYS AS IDENTITY" in kind]
        writable = list(plain) or [column for column, kind in self.definitions if "BY DEFAULT" in kind]
        found: list[str] = []
        for number, (action, column, much) in enumerate(self.actions):
            chosen = writable[column % len(writable)] if writable else ""
            many = f"generate_series({number * 1000}, {number * 1000 + much}) g"
            rows = f"SELECT tableoid, ctid FROM {name} ORDER BY ROW({name}.*)::text, tableoid, ctid LIMIT"
            some = f"WHERE (tableoid, ctid) IN ({rows} {much + 1})"
            if action == "TRUNCATE":
                found.append(f"TRUNCATE {name}")
            elif self.replica == "NOTHING" and action != "INSERT":
                continue
            elif action == "INSERT" and plain:
                values = ", ".join(kind_value(kind, f"(g + {place})") for place, kind in enumerate(plain.values()))
                found.append(f"INSERT INTO {name} ({', '.join(plain)}) SELECT {values} FROM {many}")
            elif action == "INSERT":
                found += [f"INSERT INTO {name} DEFAULT VALUES"] * (1 if self.key else min(much, 3) + 1)
            elif action == "DELETE":
                found.append(f"DELETE FROM {name} {some}")
            elif action == "SAME" and chosen:
                found.append(f"UPDATE {name} SET {chosen} = {chosen} {some}")
            elif action == "ALL" and plain:
                sets = ", ".join(
                    f"{each} = {kind_value(kind, f'({number + 1} * 100000 + {place})')}"
                    for place, (each, kind) in enumerate(plain.items())
                    if each not in self._of_key
                )
                found += [f"UPDATE {name} SET {sets} {some}"] if sets else []
            elif action == "UPDATE" and plain:
                each = list(plain)[column % len(plain)]
                one = f"WHERE (tableoid, ctid) IN ({rows} 1)"
                found.append(
                    f"UPDATE {name} SET {each} = {kind_value(plain[each], str((number + 1) * 7_000_000))} {one}"
                )
            elif action == "UPDATE" and always:
                found.append(f"UPDATE {name} SET {always[0]} = DEFAULT {some}")
        return found

    @property
    def _of_key(self) -> set[str]:
        """Return the columns of the key, or those that a computed key column uses."""
        found = {f"c{place}" for place in self.key}
        return found | {
            f"c{place}"
            for place in range(len(self.columns))
            if any(f"(c{place} " in self.columns[each] for each in self.key)
        }


def kind_value(kind: str, number: str) -> str:
    return _TYPES[kind].format(number)


@st.composite
def tables(draw: st.DrawFn) -> _Table:
    plain = draw(st.lists(st.sampled_from(list(_TYPES)), max_size=4))
    columns = list(plain)
    sources = [place for place, kind in enumerate(plain) if kind == "int"]
    for _ in range(draw(st.integers(0 if plain else 1, 2))):
        kind = draw(st.sampled_from(["computed", "constant", "always", "default"]))
        if kind == "computed" and sources:
            columns.append(f"int GENERATED ALWAYS AS (c{draw(st.sampled_from(sources))} * 2) STORED NOT NULL")
        elif kind == "constant":
            columns.append("int GENERATED ALWAYS AS (7) STORED NOT NULL")
        elif not any("IDENTITY" in each for each in columns):
            columns.append(
                "int GENERATED ALWAYS AS IDENTITY" if kind == "always" else "int GENERATED BY DEFAULT AS IDENTITY"
            )
    keyable = [
        place for place, kind in enumerate(columns) if kind in _KEYABLE or ("GENERATED" in kind and "(7)" not in kind)
    ]
    key = tuple(draw(st.lists(st.sampled_from(keyable), unique=True, max_size=2))) if keyable else ()
    # Without an index on stored columns alone the server accepts no other identity.
    is_computed = any(" AS (" in columns[place] for place in key)
    replica = draw(
        st.sampled_from(["FULL", "DEFAULT", "INDEX", "NOTHING"] if key and not is_computed else ["FULL", "NOTHING"])
    )
    if replica != "FULL" and sources and draw(st.booleans()):  # which virtual columns cannot be part of
        columns.append(f"int GENERATED ALWAYS AS (c{draw(st.sampled_from(sources))} - 1) VIRTUAL")
    may_part = [place for place in key or range(len(plain)) if place < len(plain) and columns[place] in _KEYABLE]
    parted = draw(st.sampled_from([None, *may_part]))
    actions = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["INSERT", "UPDATE", "ALL", "SAME", "DELETE", "TRUNCATE"]),
                st.integers(0, 9),
                st.integers(0, 12),
            ),
            min_size=2,
            max_size=8,
        )
    )
    further = draw(st.sampled_from([0, 0, 0, 0, 850, 1600 - len(columns)])) if parted is None else 0
    return _Table(
        columns=tuple(columns),
        key=key,
        replica=replica,
        actions=(("INSERT", 0, 8), *actions),
        further=further,
        parted=parted,
    )


@pytest.mark.seeded
def test_tables_of_every_kind_are_written_as_at_the_source(pair: Pair):
    """Test several tables at a time: reading the log takes long, creating a table does not."""
    rounds = iter(range(1000))

    @seed(seed_of("tables of every kind"))
    @settings(
        max_examples=scaled(1, 40),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate],
    )
    @given(st.lists(tables(), min_size=6, max_size=6))
    def every(made: list[_Table]) -> None:
        number = next(rounds)
        names = [f"t{number}_{place}" for place in range(len(made))]
        here = "; ".join(f"{table.made(name)}; {table.identity(name)}" for table, name in zip(made, names, strict=True))
        there = "; ".join(table.made(name) for table, name in zip(made, names, strict=True))
        if number:
            pair.run(here)
            pair.there.execute(there)
            pair.redo.source.prepare("topo", (pair_rules(),))
        else:
            pair.create(here, there)
        for name, table in zip(names, made, strict=True):
            pair.run(*table.statements(name))
        if number:
            pair.more(engines[0])
        else:
            engines.append(pair.apply())
        errors = [(error.message, error.readable[:3]) for error in pair.errors()]
        assert errors == [], made
        for name, table in zip(names, made, strict=True):
            mine, theirs = pair.here_and_there(f"SELECT ROW(t.*)::text FROM {name} t ORDER BY 1")
            assert mine == theirs, (table, table.statements(name))

    engines: list[Any] = []
    every()


def pair_rules():
    from tests.support.redo.postgres_redo import RULES

    return RULES
