"""PostgreSQL as a source: values of every type as the log has them, and the form of a stream."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg import sql

from headrace.base.errors import DataError, UnsupportedType
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.values.builtin_types import BUILTIN_TYPES
from headrace.lcr.values import NULL
from scripts.generate_builtin_types import QUERY
from tests.support.databases.postgres_site import ALL, Site, wait_inactive
from tests.support.session.matrices import cases

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# One row of difficult values for each type; other types get the value below or NULL.
VALUES = {
    "bool": "true",
    "bytea": r"\x00ff",
    "char": "'",
    "name": "a name",
    "int8": "-9223372036854775808",
    "int2": "-32768",
    "int2vector": "1 2",
    "int4": "2147483647",
    "text": "ß \\ ' \" \t\n",
    "oid": "4294967295",
    "tid": "(1,2)",
    "xid": "7",
    "cid": "7",
    "oidvector": "1 2",
    "json": '{"a" :  1}',
    "xml": None,
    "xid8": "18446744073709551615",
    "point": "(1.5,-0)",
    "lseg": "[(0,0),(1,1)]",
    "path": "((0,0),(1,1))",
    "box": "(1,1),(0,0)",
    "polygon": "((0,0),(1,1),(0,1))",
    "line": "{1,2,3}",
    "cidr": "10.0.0.0/8",
    "float4": "-0",
    "float8": "NaN",
    "circle": "<(0,0),1>",
    "macaddr8": "08:00:2b:01:02:03:04:05",
    "money": "-12.34",
    "macaddr": "08:00:2b:01:02:03",
    "inet": "::1/64",
    "aclitem": None,
    "bpchar": "x  ",
    "varchar": "",
    "date": "infinity",
    "time": "24:00:00",
    "timestamp": "4713-01-01 BC",
    "timestamptz": "-infinity",
    "interval": "1 mon -2 days 03:04:05.000006",
    "timetz": "12:00:00+15:59:59",
    "bit": "101",
    "varbit": "",
    "numeric": "-Infinity",
    "refcursor": "c",
    "regprocedure": "abs(int4)",
    "regproc": "now",
    "regoper": "|/",
    "regoperator": "+(int4,int4)",
    "regclass": "pg_class",
    "regtype": "int4",
    "regrole": "postgres",
    "regnamespace": "pg_catalog",
    "regconfig": "english",
    "regdictionary": "simple",
    "regcollation": '"C"',
    "uuid": "00000000-0000-0000-0000-00000000000f",
    "pg_lsn": "16/B374D848",
    "tsvector": "'a':1A 'b':2",
    "tsquery": "'a' & !'b'",
    "jsonb": '{"a": [1, null]}',
    "jsonpath": "$.a[*]",
    "txid_snapshot": "10:20:10,14",
    "pg_snapshot": "10:20:10,14",
    "int4range": "[1,)",
    "numrange": "empty",
    "tsrange": "(,)",
    "tstzrange": "[2020-01-01,infinity)",
    "daterange": "[2020-01-01,)",
    "int8range": "[1,5)",
    "int4multirange": "{[1,2),[5,7)}",
    "nummultirange": "{}",
    "tsmultirange": "{}",
    "tstzmultirange": "{}",
    "datemultirange": "{[2020-01-01,)}",
    "int8multirange": "{[1,2)}",
}
NOT_INSERTABLE = {
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "gtsvector",
}


@pytest.mark.parametrize(
    ("any_site", "form"),
    cases(
        {
            f"{name} {form}": (name, form)
            for name in ("18 raw", "18 libpq", "16 raw", "16 libpq", "15 raw")
            for form in ("binary", "text")
        },
        {"18 raw binary", "18 libpq text", "16 libpq binary", "15 raw binary"},
    ),
    indirect=["any_site"],
)
def test_values_of_every_built_in_type_equal_those_that_the_server_sends(
    any_site: tuple[Site, bool], form: str
) -> None:
    site, force_libpq = any_site
    types = site.run(
        "SELECT typname::text FROM pg_type WHERE typtype IN ('b', 'r', 'm') AND typelem = 0 AND typrelid = 0 AND oid <"
        " 10000 OR typname IN ('int2vector', 'oidvector', 'point', 'lseg', 'box', 'line') OR typname = 'name' ORDER BY 1"
    ).fetchall()
    names = [str(name) for (name,) in types if name not in NOT_INSERTABLE]
    numbers = {
        f"reg{kind}"
        for kind in (
            "proc",
            "procedure",
            "oper",
            "operator",
            "class",
            "type",
            "role",
            "namespace",
            "config",
            "dictionary",
            "collation",
        )
    }
    if form == "binary":
        names = [name for name in names if name not in numbers | {"int2vector", "oidvector"}]
    columns = ", ".join(f'"{name}" pg_catalog."{name}"' for name in names)
    site.run(f"CREATE TABLE v (id_ int PRIMARY KEY, {columns})")
    if form == "binary":  # noqa: SIM108
        arrays = [name for name in names if name != "aclitem"]
    else:
        arrays = ["text", "regclass", "numeric", "aclitem"]
    site.run(
        "CREATE TABLE w (id_ int PRIMARY KEY,"
        f" {', '.join(f'{chr(34)}{n}{chr(34)} pg_catalog.{chr(34)}{n}{chr(34)}[]' for n in arrays)})"
    )
    site.prepare()
    reading = site.open(force_libpq=force_libpq)
    assert reading.stream.options.binary == (form == "binary")
    for name in names:
        assert name in VALUES, f"a new type: {name}"
    values = {name: VALUES[name] for name in names if VALUES[name] is not None}
    placed = sql.SQL("INSERT INTO v (id_, {}) VALUES (1, {})").format(
        sql.SQL(", ").join(sql.Identifier(n) for n in values),
        sql.SQL(", ").join(sql.Literal(v) for v in values.values()),
    )
    site.user.execute(placed)
    site.run("INSERT INTO v (id_) VALUES (2)")
    odd = sql.SQL("INSERT INTO w (id_, {}) SELECT 1, {} FROM v WHERE id_ = 1").format(
        sql.SQL(", ").join(sql.Identifier(n) for n in arrays),
        sql.SQL(", ").join(sql.SQL("ARRAY[[{0}], [NULL::pg_catalog.{0}]]").format(sql.Identifier(n)) for n in arrays),
    )
    site.user.execute(odd)
    reading.through(site.mark())

    for table, rows in (("v", 2), ("w", 1)):
        expected = _as_sent(site, table, binary=form == "binary")
        actual = [row for row in reading.rows() if row.table.name == table]
        assert len(actual) == rows
        for row, wanted in zip(actual, expected, strict=True):
            for column in row.table.columns:
                assert row.new[column.name] == wanted[column.name], (table, column)


def _as_sent(site: Site, table: str, *, binary: bool) -> list[dict[str, bytes | int]]:
    """Return the rows as libpq gets them in the wanted form, as text where a type has no binary form."""
    columns = [
        str(name)
        for (name,) in site.run(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum", table
        ).fetchall()
    ]
    text_only = {str(name) for (name,) in site.run("SELECT typname FROM pg_type WHERE typsend = 0").fetchall()}
    out: list[dict[str, bytes | int]] = []
    pinned = (
        "SET DateStyle = ISO; SET IntervalStyle = postgres; SET extra_float_digits = 3; SET TimeZone = UTC; SET"
        " search_path = ''; SET bytea_output = hex"
    )
    with psycopg.connect(site.dsn, autocommit=True) as session:
        session.execute(pinned)
        for column in columns:
            query = f'SELECT "{column}" FROM public.{table} ORDER BY id_'.encode()
            form = int(binary and column not in text_only)
            result = session.pgconn.exec_params(query, [], result_format=form)
            for row in range(result.ntuples):
                value = result.get_value(row, 0)
                if len(out) <= row:
                    out.append({})
                out[row][column] = NULL if value is None else value
    return out


def test_user_defined_types_are_named(site: Site) -> None:
    site.run("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    site.run('CREATE SCHEMA "Other"')
    site.run('CREATE DOMAIN "Other".posint AS int CHECK (VALUE > 0)')
    site.run('CREATE TABLE t (id int PRIMARY KEY, m mood, p "Other".posint)')
    site.prepare()
    reading = site.open()
    site.run("INSERT INTO t VALUES (1, 'ok', 3)")
    reading.through(site.mark())
    columns = {c.name: c for c in reading.rows()[0].table.columns}
    assert columns["m"].type_name == "public.mood"
    assert columns["p"].type_name == "pg_catalog.int4", "pgoutput names a domain's base type"
    assert columns["m"].type_number > 16383
    assert reading.rows()[0].new == {"id": b"\0\0\0\x01", "m": b"ok", "p": b"\0\0\0\x03"}


@pytest.mark.parametrize(
    ("column", "is_binary"),
    [
        ("int[]", True),
        ("mood", True),
        ("mood[]", False),
        ("plain", True),
        ("plain[]", False),
        ("with_mood", False),
        ("posint", True),
        ("posint[]", False),
        ("mood_range", True),
        ("regclass", False),
        ("regtype[]", False),
        ("aclitem", True),
        ("aclitem[]", False),
        ("with_acl", False),
        ("own_regclass", False),
        ("int4multirange", True),
        ("oidvector", False),
        ("int2vector[]", False),
    ],
)
def test_binary_form_is_chosen_only_if_it_means_the_same_elsewhere(site: Site, column: str, is_binary: bool) -> None:
    for statement in (
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TYPE plain AS (a int, b text)",
        "CREATE TYPE with_mood AS (a int, m mood)",
        "CREATE DOMAIN posint AS int",
        "CREATE TYPE mood_range AS RANGE (subtype = mood)",
        "CREATE TYPE with_acl AS (a aclitem)",
        "CREATE DOMAIN own_regclass AS regclass",
        f"CREATE TABLE t (id int PRIMARY KEY, c {column})",
    ):
        site.run(statement)
    (version,) = site.source.table_versions(site.source.tables(ALL))
    assert all(column.is_binary is is_binary for column in version.columns)
    site.prepare()
    reading = site.open()
    assert reading.stream.options.binary is is_binary
    site.run("INSERT INTO t VALUES (1, NULL)")
    reading.through(site.mark())
    warnings = [f for f in site.source.preflight(ALL, streams=1) if "text form" in f.problem]
    assert bool(warnings) is not is_binary
    assert all(not f.is_error for f in warnings)


def test_type_that_blocks_a_binary_stream_is_read_as_text_on_reconnect(site: Site) -> None:
    """An open stream gets no notice of a new column of such a type. The server raises an error, and the next open
    recovers.
    """
    site.run("CREATE TABLE t (id int PRIMARY KEY)")
    site.prepare()
    reading = site.open()
    site.run("ALTER TABLE t ADD a aclitem[]")
    site.run("INSERT INTO t VALUES (1, ARRAY[makeaclitem('postgres'::regrole, 'postgres'::regrole, 'SELECT', false)])")
    with pytest.raises(UnsupportedType, match="binary"):
        reading.through(site.mark())
    reading.stream.close()
    wait_inactive(site)
    again = site.open(reading.end_scn)
    assert not again.stream.options.binary
    again.through(site.mark())
    assert again.rows()[0].new == {"id": b"1", "a": b"{postgres=r/postgres}"}


def test_text_that_is_not_utf8_stops_the_stream_of_an_unencoded_database(site: Site) -> None:
    """The server does not convert there, and sends a UTF-8 client no text that it considers invalid."""
    site.run("CREATE DATABASE raw ENCODING 'SQL_ASCII' TEMPLATE template0 LOCALE 'C'")
    raw = Site(psycopg.conninfo.make_conninfo(site.dsn, dbname="raw"))
    try:
        raw.run("CREATE TABLE t (id int PRIMARY KEY, a text)")
        assert [f.is_error for f in raw.source.preflight(ALL, streams=1) if "SQL_ASCII" in f.problem] == [False]
        raw.prepare()
        reading = raw.open()
        raw.run("SET client_encoding = 'SQL_ASCII'")
        raw.user.execute(b"INSERT INTO t VALUES (1, 'caf\xe9')")
        with pytest.raises(DataError):
            reading.through(raw.mark())
        reading.stream.close()
        wait_inactive(raw)
        raw.source.remove("topo")
    finally:
        raw.close()
        site.run("DROP DATABASE raw WITH (FORCE)")


def test_table_of_built_in_types_equals_the_servers(site: Site) -> None:
    rows = site.run(QUERY).fetchall()
    assert {number: (name, has_binary) for number, name, has_binary in rows} == BUILTIN_TYPES, (
        "run scripts/generate_builtin_types.py"
    )


def test_types_of_older_versions_are_also_in_the_table(
    make_site: Callable[[EmbeddedServer], Site], pg_16: EmbeddedServer, pg_15: EmbeddedServer
) -> None:
    older = [row for server in (pg_16, pg_15) for row in make_site(server).run(QUERY).fetchall()]
    for number, name, has_binary in older:
        assert BUILTIN_TYPES[int(number)] == (name, has_binary)  # type: ignore[call-overload]
