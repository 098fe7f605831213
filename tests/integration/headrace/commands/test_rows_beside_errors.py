"""`errors show`: the destination's rows beside the failed row, including rows that conflict with another unique key."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from headrace.databases.postgres.destination.row_reader import PostgresRowReader
from headrace.lcr.batch import Column

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

ID = Column(name="id", type_name="pg_catalog.int4", type_number=23, is_key=True)
EMAIL = Column(name="email", type_name="pg_catalog.text", type_number=25)
PHONE = Column(name="phone", type_name="pg_catalog.text", type_number=25)


def test_row_in_conflict_with_a_second_key_is_found_after_the_keys_row(destination_database: str) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute("CREATE TABLE t (id int PRIMARY KEY, email text UNIQUE, phone text UNIQUE)")
        user.execute("INSERT INTO t VALUES (1, 'a@x', '1'), (2, 'b@x', '2'), (3, NULL, '3')")
    row = {
        str(number): {"id": str(number), "email": email, "phone": str(number)}
        for number, email in ((1, "a@x"), (2, "b@x"), (3, None))
    }

    def beside(number: bytes, email: bytes | None, phone: bytes | None) -> tuple[dict[str, str | None], ...]:
        return reader.beside("public", "t", {"id": (ID, number), "email": (EMAIL, email), "phone": (PHONE, phone)})

    with closing(PostgresRowReader(destination_database)) as reader:
        assert beside(b"9", b"b@x", b"9") == (row["2"],)
        assert set(map(str, beside(b"9", b"a@x", b"3"))) == {str(row["1"]), str(row["3"])}
        assert beside(b"1", b"a@x", b"1") == (row["1"],)
        assert beside(b"1", b"b@x", None) == (row["1"], row["2"])
        assert beside(b"9", None, None) == ()


def test_row_in_conflict_with_an_index_over_an_expression_is_found(destination_database: str) -> None:
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(
            "CREATE TABLE t (id int PRIMARY KEY, email text, phone text); CREATE UNIQUE INDEX ON t (lower(email));"
            " CREATE UNIQUE INDEX ON t (phone) WHERE id > 1"
        )
        user.execute("INSERT INTO t VALUES (1, 'A@x', '1'), (2, 'b@x', '2')")
    with closing(PostgresRowReader(destination_database)) as reader:

        def beside(number: bytes, email: bytes | None, phone: bytes | None) -> list[str | None]:
            return [
                row["id"]
                for row in reader.beside(
                    "public", "t", {"id": (ID, number), "email": (EMAIL, email), "phone": (PHONE, phone)}
                )
            ]

        assert beside(b"7", b"a@X", None) == ["1"]
        assert beside(b"7", b"c@x", b"2") == ["2"]
        assert beside(b"7", b"c@x", b"1") == [], "the index has no row with id 1"
        assert beside(b"0", b"c@x", b"2") == [], "the index would not have this row"
        assert beside(b"7", None, None) == []


@pytest.mark.parametrize(
    "constraint",
    [
        "PRIMARY KEY (id, valid WITHOUT OVERLAPS)",
        "UNIQUE (id, valid WITHOUT OVERLAPS)",
        "EXCLUDE USING gist (id WITH =, valid WITH &&)",
        "EXCLUDE USING gist (id WITH =, (int4range(lower(valid), upper(valid))) WITH &&) WHERE (lower(valid) > 0)",
    ],
)
def test_row_with_other_values_that_conflicts_with_an_exclusion_is_found(
    destination_database: str, constraint: str
) -> None:
    ranges = [Column(name=name, type_name="pg_catalog.int4range", type_number=3904) for name in ("id", "valid")]
    with psycopg.connect(destination_database, autocommit=True) as user:
        user.execute(f"CREATE TABLE t (id int4range, valid int4range, {constraint})")
        user.execute("INSERT INTO t VALUES ('[1,2)', '[10,20)'), ('[1,2)', '[20,30)'), ('[2,3)', '[10,20)')")
    with closing(PostgresRowReader(destination_database)) as reader:

        def beside(*values: bytes) -> list[str]:
            given = dict(zip(("id", "valid"), zip(ranges, values, strict=True), strict=True))
            return sorted(str(row["valid"]) for row in reader.beside("public", "t", given))

        assert beside(b"[1,2)", b"[12,14)") == ["[10,20)"]
        assert beside(b"[1,2)", b"[15,25)") == ["[10,20)", "[20,30)"]
        assert beside(b"[1,2)", b"[10,20)") == ["[10,20)"]
        assert beside(b"[3,4)", b"[12,14)") == beside(b"[1,2)", b"[40,50)") == []
