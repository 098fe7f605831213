"""Hard values of every type a table column can have, and tables that hold them."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

# Hard values of every type that has an input function for users. Arrays of each type are made from them.
LITERALS: dict[str, list[str]] = {
    "aclitem": ["=r/postgres"],
    "bit": ["1"],
    "bool": ["t", "f"],
    "box": ["(2,2),(0,0)", "(Infinity,1),(-1,-Infinity)"],
    "bpchar": ["", "a  ", "ü"],
    "bytea": ["\\x", "\\x00ff00", "\\x" + "ab" * 5000],
    "char": ["a", "\\377", ""],
    "cid": ["7"],
    "cidr": ["10.0.0.0/8", "2001:db8::/32"],
    "circle": ["<(1,2),3>", "<(NaN,0),Infinity>"],
    "date": ["2026-02-28", "infinity", "-infinity", "4713-01-01 BC", "5874897-12-31"],
    "datemultirange": ["{}", "{[2026-01-01,2026-02-01),[2026-03-01,infinity)}"],
    "daterange": ["empty", "[2026-01-01,)", "(,)"],
    "float4": ["NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38"],
    "float8": ["NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1"],
    "inet": ["10.1.2.3/8", "::1", "0.0.0.0/0"],
    "int2": ["-32768", "32767"],
    "int2vector": ["1 2 3", ""],
    "int4": ["-2147483648", "2147483647"],
    "int4multirange": ["{}", "{[1,5),[7,)}"],
    "int4range": ["empty", "(,)", "[1,5)"],
    "int8": ["-9223372036854775808", "9223372036854775807"],
    "int8multirange": ["{(,-5)}"],
    "int8range": ["[1,2]"],
    "interval": ["1 mon", "-1 years -2 mons +3 days -04:05:06.789", "infinity", "178000000 years"],
    "json": ['{"b": 1, "a": [1,  2], "a": null}', '" "'],
    "jsonb": ['{"b": 1.00, "a": [1,  2]}', "null"],
    "jsonpath": ["$.a[*] ? (@ > 1)"],
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "money": ["-$92,233,720,368,547,758.08", "0"],
    "name": ["a name", ""],
    "numeric": ["NaN", "Infinity", "-Infinity", "0.00", "-0.000001", "1" * 200 + "." + "9" * 300, "1e-16383", "12300"],
    "nummultirange": ["{[1.0,1.00],[2.5,)}"],
    "numrange": ["[1.0,1.00]", "(NaN,)"],
    "oid": ["4294967295"],
    "oidvector": ["1 2 4294967295"],
    "path": ["[(1,2),(3,4)]", "((1,2),(3,4))"],
    "pg_lsn": ["FFFFFFFF/FFFFFFFF"],
    "pg_snapshot": ["10:20:10,14,15"],
    "point": ["(1,2)", "(NaN,-Infinity)"],
    "polygon": ["((1,2),(3,4),(5,6))"],
    "refcursor": ["c"],
    "regclass": ["pg_catalog.pg_class", "-"],
    "regcollation": ['pg_catalog."C"'],
    "regconfig": ["pg_catalog.simple"],
    "regdictionary": ["pg_catalog.simple"],
    "regnamespace": ["pg_catalog"],
    "regoper": ["pg_catalog.||/"],
    "regoperator": ["pg_catalog.+(integer,integer)"],
    "regproc": ["pg_catalog.now"],
    "regprocedure": ["pg_catalog.now()"],
    "regrole": ["postgres"],
    "regtype": ["integer"],
    "text": ["", " ", "a,b\"c\\d'e{}\tü\n", "x" * 10_000, "NULL"],
    "tid": ["(4294967295,65535)"],
    "time": ["24:00:00", "00:00:00.000001"],
    "timestamp": ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"],
    "timestamptz": ["infinity", "-infinity", "4713-01-01 00:00:00+00 BC", "2026-10-25 02:30:00.5+02"],
    "timetz": ["24:00:00+15:59:59", "00:00:00-15:59:59"],
    "tsmultirange": ["{[2026-01-01,2026-01-02)}"],
    "tsquery": ["'fat' & ( 'rat' | !'cat':AB* )"],
    "tsrange": ["[-infinity,infinity]"],
    "tstzmultirange": ["{[2026-01-01 00:00+00,)}"],
    "tstzrange": ["(2026-01-01 00:00+00,2026-01-02 00:00+00]"],
    "tsvector": ["'a':1A 'b c':2,3B 'üx'", ""],
    "txid_snapshot": ["10:20:10,14,15"],
    "uuid": ["00000000-0000-0000-0000-000000000000"],
    "varbit": ["", "1", "10101010101"],
    "varchar": ["", "a  ", "ü" * 300],
    "xid": ["4294967295"],
    "xid8": ["18446744073709551615"],
}

# Types that cannot be replicated, and why. The tests fail when one of these starts to work.
NO_INPUT = {
    "gtsvector": "PostgreSQL has no input for it",
    "pg_brin_bloom_summary": "PostgreSQL has no input for it",
    "pg_brin_minmax_multi_summary": "PostgreSQL has no input for it",
    "pg_dependencies": "PostgreSQL has no input for it",
    "pg_mcv_list": "PostgreSQL has no input for it",
    "pg_ndistinct": "PostgreSQL has no input for it",
    "pg_node_tree": "PostgreSQL has no input for it",
    "xml": "the bundled PostgreSQL is built without libxml",
}
# A source with such a type streams text (its preflight ensures that).
NO_BINARY = {"aclitem": "no send function"}
# Single values that PostgreSQL's receive function refuses in the form of its send function.
NO_BINARY_VALUE = {"int2vector": "", "oidvector": ""}

USER_TYPES = """
CREATE SCHEMA app;
CREATE TYPE app.mood AS ENUM ('sad', 'it''s ok', 'happy');
CREATE TYPE app.pair AS (a integer, "the b" text, m app.mood, more app.mood[]);
CREATE DOMAIN app.positive AS numeric(10,2) CHECK (VALUE > 0);
CREATE DOMAIN app.more_positive AS app.positive CHECK (VALUE > 1);
CREATE DOMAIN app.numbers AS integer[];
CREATE TYPE app.span AS RANGE (subtype = app.positive);
CREATE TYPE app.float_span AS RANGE (subtype = float8);
"""
USER_LITERALS: dict[str, list[str]] = {
    "app.mood": ["sad", "it's ok"],
    "app.mood[]": ['{sad,NULL,"it\'s ok"}', "{}", "[-2:-1][3:3]={{sad},{happy}}"],
    "app.pair": ['(1,"a,b",happy,"{sad,NULL}")', "(,,,)"],
    "app.pair[]": ['{"(1,,sad,{happy})",NULL}'],
    "app.positive": ["12.50"],
    "app.positive[]": ["{1.00,2.50}"],
    "app.more_positive": ["2.00"],
    "app.numbers": ["{1,NULL,3}", "[0:1]={5,6}"],
    "app.numbers[]": ['{"{1,2}","{3}"}'],
    "app.span": ["[1.00,2.00)", "empty"],
    "app.span[]": ['{"[1.00,2.00)",empty}'],
    "app.float_span": ["[NaN,NaN]", "(,0.1)"],
    "app.float_span_multirange": ["{[1,2),[3,)}"],
    "varchar(5)": ["abcde"],
    "character(5)": ["ab"],
    "character(5)[]": ['{"ab   ",NULL}'],
    "numeric(12,3)": ["1.500"],
    "numeric(3,-2)": ["12300"],
    "bit(5)": ["10101"],
    "bit varying(5)": ["101"],
    "timestamp(3)": ["2026-01-01 00:00:00.123"],
    "time(0) with time zone": ["12:00:00+01"],
    "interval day to second(2)": ["3 days 04:05:06.78"],
    'text COLLATE "C"': ["ä"],
}
COLUMNS_PER_TABLE = 40  # a row of toast pointers must fit into a page


def builtin_types(source: psycopg.Connection) -> list[str]:
    """Return the names of all types that a table column can have, arrays included."""
    found = source.execute(
        "SELECT typname FROM pg_type WHERE typnamespace = 'pg_catalog'::regnamespace AND typtype IN ('b', 'r', 'm',"
        " 'e', 'd') AND typelem IN (SELECT 0 UNION SELECT oid FROM pg_type WHERE typtype NOT IN ('c', 'p')) ORDER BY"
        " typname"
    ).fetchall()
    return [row[0] for row in found]


def array_literals(element: str, literals: list[str]) -> list[str]:
    if element == "box":  # boxes are separated by semicolons
        return ["{" + ";".join(literals) + "}", "{}"]
    quoted = ['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in literals]
    return ["{" + ",".join([*quoted, "NULL"]) + "}", "{}", f"[-1:0][5:5]={{{{{quoted[0]}}},{{NULL}}}}"]


def literals_of(source: psycopg.Connection) -> dict[str, list[str]]:
    """Return literals by type, as DDL spells it."""
    found: dict[str, list[str]] = {}
    for name in builtin_types(source):
        element = name.removeprefix("_")
        if element in NO_INPUT:
            continue
        spelled = f'pg_catalog."{name}"'
        found[spelled] = LITERALS[name] if name == element else array_literals(element, LITERALS[element])
    return {**found, **USER_LITERALS}


def without_exceptions(spelled: str, literals: list[str]) -> list[str]:
    """Return the literals that can be sent in binary form."""
    name = spelled.removeprefix('pg_catalog."').removesuffix('"')
    if name.removeprefix("_") in NO_BINARY:
        return []
    if name.removeprefix("_") in NO_BINARY_VALUE and name.startswith("_"):
        return [text.replace(',""', "") for text in literals]
    return [text for text in literals if NO_BINARY_VALUE.get(name) != text]


def groups(items: dict[str, list[str]]) -> Iterator[dict[str, list[str]]]:
    names = list(items)
    for first in range(0, len(names), COLUMNS_PER_TABLE):
        yield {name: items[name] for name in names[first : first + COLUMNS_PER_TABLE]}


def make_tables(source: psycopg.Connection, target: psycopg.Connection, name: str, types: dict[str, list[str]]) -> None:
    """Create the table at both sides; at the source with one row per literal, shorter lists padded with NULL."""
    columns = ", ".join(f"c{number} {spelled}" for number, spelled in enumerate(types))
    for connection in (source, target):
        connection.execute(f"DROP TABLE IF EXISTS app.{name}")
        connection.execute(f"CREATE TABLE app.{name} (id integer PRIMARY KEY, {columns})")
    for row in range(max(len(literals) for literals in types.values())):
        values = [literals[row] if row < len(literals) else None for literals in types.values()]
        places = ", ".join(["%s"] * len(values))
        source.execute(f"INSERT INTO app.{name} VALUES (%s, {places})", [row, *values])
