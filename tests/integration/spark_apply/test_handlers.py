"""The example's handlers on real servers, in one process: procedures, statements and error handlers in the transaction
of the data.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest

from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.destination.server_session import handler_sql
from headrace.testing import Destination, Table, row_lcr
from tests.support.ways.postgres_network import PostgresNetwork, two_sites

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[3] / "examples" / "handlers.yaml"
SITES = ("dbs1", "dbs2")


ORDERS = Table(name="shop.orders", columns={"id": "int4", "status": "text"}, logs_old_rows=True)
PRICES = Table(name="shop.prices", columns={"id": "int4", "price": "numeric"}, logs_old_rows=True)
CUSTOMERS = Table(name="shop.customers", columns={"id": "int4", "name": "text"}, logs_old_rows=True)
HISTORY = Table(
    name="shop.price_history",
    columns={"id": "int4", "old_price": "numeric", "new_price": "numeric", "commit_scn": "int8"},
    key=(),
    logs_old_rows=True,
)
DOUBLES = Table(
    name="shop.doubles", columns={"id": "int4", "name": "text", "error": "text"}, key=(), logs_old_rows=True
)


def in_memory() -> Destination:
    """Run the example's apply process as a user's test does; it must give the result of the servers."""
    found = Destination.from_file(EXAMPLE, tables=(ORDERS, PRICES, CUSTOMERS, HISTORY, DOUBLES))
    found.insert("shop.customers", {"id": 3, "name": "here"})
    found.on(
        "UPDATE shop.orders SET status = 'DELETED' WHERE id = $1",
        lambda tables, key: [()] * tables.update("shop.orders", {"id": key}, {"status": "DELETED"}),
    )
    for table, sql in (
        (HISTORY, "INSERT INTO shop.price_history (id, old_price, new_price, commit_scn) VALUES ($1, $2, $3, $4)"),
        (DOUBLES, "INSERT INTO shop.doubles (id, name, error) VALUES ($1, $2, $3)"),
    ):
        found.on(
            sql,
            lambda tables, *values, table=table: tables.insert(
                table.name, dict(zip(table.columns, values, strict=True))
            ),
        )
    return found


@pytest.fixture
def network(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Iterator[PostgresNetwork]:
    """Make the example's two sites on two servers."""

    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute(
            "CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, status text, at timestamptz DEFAULT"
            " now());CREATE TABLE shop.prices (id int PRIMARY KEY, price numeric(12, 2));"
            "CREATE TABLE shop.customers (id int PRIMARY KEY, name text);"
            "ALTER TABLE shop.orders REPLICA IDENTITY FULL; ALTER TABLE shop.prices REPLICA IDENTITY FULL"
        )
        if site == "dbs2":
            connection.execute(
                "CREATE TABLE shop.price_history (id int, old_price numeric, new_price numeric, commit_scn bigint);"
                "CREATE TABLE shop.doubles (id int, name text, error text); INSERT INTO shop.customers VALUES (3,"
                " 'here')"
            )

    with two_sites(EXAMPLE, (pg_source, pg_destination), fresh_database, tmp_path, tables) as made:
        yield made


def test_examples_handlers_do_what_the_example_says(network: PostgresNetwork) -> None:
    rng = random.Random(1)
    user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
    orders: dict[int, str] = {}
    prices: dict[int, int] = {}
    history: list[tuple[int, int, int]] = []
    offline = in_memory()
    for number in range(1, 60):
        with user.transaction():
            key = rng.randrange(1, 12)
            if key not in orders:
                user.execute("INSERT INTO shop.orders VALUES (%s, 'new')", (number,))
                offline.apply(row_lcr(ORDERS, "INSERT", new={"id": number, "status": "new"}))
                orders[number] = "NEW"
            elif orders[key] != "DELETED":
                gone = rng.random() < 0.2
                user.execute(
                    "DELETE FROM shop.orders WHERE id = %s"
                    if gone
                    else "UPDATE shop.orders SET status = 'paid' WHERE id = %s",
                    (key,),
                )
                if gone:
                    offline.apply(row_lcr(ORDERS, "DELETE", old={"id": key, "status": orders[key].lower()}))
                else:
                    offline.apply(
                        row_lcr(
                            ORDERS, "UPDATE", old={"status": orders[key].lower()}, new={"id": key, "status": "paid"}
                        )
                    )
                orders[key] = "DELETED" if gone else "PAID"
            if key not in prices:
                user.execute("INSERT INTO shop.prices VALUES (%s, %s)", (key, number))
                offline.apply(row_lcr(PRICES, "INSERT", new={"id": key, "price": number}))
            else:
                user.execute("UPDATE shop.prices SET price = %s WHERE id = %s", (number, key))
                history.append((key, prices[key], number))
                offline.apply(row_lcr(PRICES, "UPDATE", old={"price": prices[key]}, new={"id": key, "price": number}))
            prices[key] = number
            user.execute("INSERT INTO shop.customers VALUES (%s, 'new')", (number,))
            offline.apply(row_lcr(CUSTOMERS, "INSERT", new={"id": number, "name": "new"}))
    network.settle()
    assert dict(there.execute("SELECT id, status FROM shop.orders").fetchall()) == orders
    assert dict(there.execute("SELECT id, price FROM shop.prices").fetchall()) == prices
    assert (
        there.execute("SELECT id, old_price, new_price FROM shop.price_history ORDER BY new_price").fetchall()
        == history
    )
    assert there.execute("SELECT count(*) FROM shop.customers").fetchone() == (59,)
    assert there.execute("SELECT name FROM shop.customers WHERE id = 3").fetchone() == ("here",)
    assert there.execute("SELECT id, name FROM shop.doubles").fetchall() == [(3, "new")]
    assert network.sites["dbs2"].destination.errors(network.spec.name) == ()
    ((kind, method, outcome, current),) = there.execute(
        "SELECT conflict_type, method_name, outcome, current_values FROM headrace.dba_apply_conflict_history"
    ).fetchall()
    assert (kind, method.partition(" (")[0], outcome, current) == (
        "insert_exists",
        "customers:keep_both",
        "HANDLED",
        ["id=3", "name=here"],
    )
    assert offline.errors == []
    for table in (ORDERS, PRICES, HISTORY, CUSTOMERS, DOUBLES):
        names = [name for name in table.columns if name not in {"commit_scn", "error"}]
        live = there.execute(f"SELECT {', '.join(names)} FROM {table.name}").fetchall()
        assert sorted(live) == sorted(tuple(row[name] for name in names) for row in offline.rows(table.name)), (
            table.name
        )


PEOPLE = """topology: people
state_dir: {folder}
sites:
  dbs1: {{database: {{kind: embedded}}}}
  dbs2: {{database: {{kind: embedded}}}}
replicate:
  - {{tables: [public.people], from: dbs1, to: [dbs2]}}
code: ./code
{handlers}
"""
HIDDEN = """dml_handlers:
  - {table: public.people, operations: [insert], function: "people:hide"}
"""


Tables = Callable[[str, psycopg.Connection], None]
Handled = Callable[..., AbstractContextManager[PostgresNetwork]]


@pytest.fixture
def handled(
    pg_source: EmbeddedServer,
    pg_destination: EmbeddedServer,
    fresh_database: Callable[[EmbeddedServer], str],
    tmp_path: Path,
) -> Handled:
    """Return a function that opens two sites on two servers from a topology file's text, with modules of handlers in
    the folder `code`.
    """

    def opened(text: str, tables: Tables, **modules: str) -> AbstractContextManager[PostgresNetwork]:
        (tmp_path / "code").mkdir()
        for name, code in modules.items():
            (tmp_path / "code" / f"{name}.py").write_text(code)
        file = tmp_path / "handled.yaml"
        file.write_text(text)
        return two_sites(file, (pg_source, pg_destination), fresh_database, tmp_path / "redo", tables)

    return opened


def test_values_that_a_handler_hides_stay_hidden_after_later_changes(handled: Handled, tmp_path: Path) -> None:
    def tables(_: str, connection: psycopg.Connection) -> None:
        connection.execute(
            "CREATE TABLE public.people (id int PRIMARY KEY, name text, secret text); ALTER TABLE public.people REPLICA"
            " IDENTITY FULL"
        )

    with handled(
        PEOPLE.format(folder=tmp_path / "state", handlers=HIDDEN),
        tables,
        people="def hide(lcr, session):\n    lcr.set_value('new', 'secret', '***')\n   "
        " lcr.execute(conflict_resolution=False)\n",
    ) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        with user.transaction():
            user.execute("INSERT INTO people VALUES (1, 'a', 'x'), (2, 'b', 'y')")
            user.execute("UPDATE people SET name = 'changed' WHERE id = 1")
        user.execute("UPDATE people SET id = 3 WHERE id = 2")
        network.settle()
        assert there.execute("SELECT id, name, secret FROM people ORDER BY id").fetchall() == [
            (1, "changed", "***"),
            (3, "b", "***"),
        ]
        with user.transaction():  # an old value that the site lacks: a conflict, in one transaction as in two
            user.execute("INSERT INTO people VALUES (4, 'c', 'z')")
            user.execute("DELETE FROM people WHERE id = 4")
        network.settle()
        assert [error.conflict_type for error in network.sites["dbs2"].destination.errors(network.spec.name)] == [
            "delete_differs"
        ]


ADDS = """from decimal import Decimal

def adds(lcr, session):
    lcr.object_name = "staff"
    for column, value in (("city", "Köln"), ("credit", Decimal("1.50")), ("seen", 5), ("marks", ["it's", None]), ("more", {"a": 1}), ("gone", lcr.NULL),
        ("data", b"\\\\101"), ("doc", {"a": 1})):
        lcr.add_column("new", column, value)
    lcr.set_value("new", "secret", lcr.NULL)
    lcr.execute(conflict_resolution=True)
"""


def test_handler_adds_columns_of_the_destinations_types_and_sets_null(handled: Handled, tmp_path: Path) -> None:
    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute("CREATE TABLE public.people (id int PRIMARY KEY, name text, secret text)")
        if site == "dbs2":
            connection.execute("CREATE DOMAIN public.bytes AS bytea; CREATE DOMAIN public.document AS jsonb")
            connection.execute(
                "CREATE TABLE public.staff (id int PRIMARY KEY, name text, secret text DEFAULT 'x', city varchar(20),"
                " credit numeric(12, 2), seen bigint, marks text[], more jsonb, gone date DEFAULT now(), data bytes,"
                " doc document)"
            )

    with handled(
        PEOPLE.format(folder=tmp_path / "state", handlers=HIDDEN).replace("people:hide", "people:adds"),
        tables,
        people=ADDS,
    ) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        user.execute("INSERT INTO people VALUES (1, 'ann', 'x'), (2, 'bob', 'y')")
        network.settle()
        assert network.sites["dbs2"].destination.errors(network.spec.name) == ()
        assert there.execute("SELECT * FROM staff ORDER BY id").fetchall() == [
            (key, name, None, "Köln", Decimal("1.50"), 5, ["it's", None], {"a": 1}, None, b"\\101", {"a": 1})
            for key, name in ((1, "ann"), (2, "bob"))
        ]
        assert there.execute("SELECT count(*) FROM people").fetchone() == (0,)


BOUND = """topology: bound
state_dir: {folder}
sites:
  dbs1: {{database: {{kind: embedded}}}}
  dbs2: {{database: {{kind: embedded}}}}
replicate:
  - {{tables: [public.every], from: dbs1, to: [dbs2]}}
code: ./code
dml_handlers:
  - table: public.every
    operations: [insert]
    statements: ["INSERT INTO public.bound SELECT {binds}"]
  - {{table: public.every, operations: [update], function: "every:write"}}
"""
WRITE = """def write(lcr, session):
    values = list(lcr.get_values("new").values())
    places = ", ".join(f"${number + 1}" for number in range(len(values)))
    session.execute(f"INSERT INTO public.written VALUES ({places})", *values)
    where, found = lcr.get_where_clause()
    assert session.execute(f"SELECT count(*) FROM public.written WHERE {where}", *found) == [(1,)]
    lcr.command_type = "INSERT"
    text, values = lcr.get_row_text()
    session.execute(text, *values)
    session.execute("UPDATE public.written SET text_doc = $1, marks = $2", lcr.get_value("new", "text_doc").decoded, lcr.get_value("new", "marks").decoded)
"""
OF_EVERY_TYPE = {
    "id": ("int", "1"),
    "small": ("smallint", "2"),
    "big": ("bigint", "4000000000"),
    "real": ("real", "0.1"),
    "double": ("float8", "0.1"),
    "price": ("numeric(12, 2)", "1.50"),
    "truth": ("bool", "false"),
    "words": ("text", "'it''s'"),
    "short": ("varchar(9)", "'a'"),
    "code": ("char(5)", "'b'"),
    "raw": ("bytea", "'\\x00ff'"),
    "day": ("date", "'2026-01-31'"),
    "hour": ("time", "'08:30'"),
    "at": ("timestamp", "'2026-01-31 08:30'"),
    "zone": ("timestamptz", "'2026-01-31 08:30+01'"),
    "span": ("interval", "'1 day 2 hours'"),
    "uid": ("uuid", "'00000000-0000-0000-0000-000000000007'"),
    "net": ("inet", "'::1'"),
    "doc": ("jsonb", "'{\"a\": [\"it''s\", 1.50]}'"),
    "items": ("jsonb", "'[1, \"b\"]'"),
    "text_doc": ("json", "'{\"b\": null}'"),
    "scalar": ("jsonb", "'\"x\"'"),
    "marks": ("text[]", "'{\"it''s\",NULL}'"),
    "numbers": ("int[]", "'{1,2}'"),
    "mood": ("public.mood", "'glad'"),
    "span_of": ("int4range", "'[1,5)'"),
    "nothing": ("jsonb", "NULL"),
}


def test_values_of_every_type_reach_the_sql_of_handlers(
    handled: Handled,
    tmp_path: Path,
) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in OF_EVERY_TYPE.items())

    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute("CREATE TYPE public.mood AS ENUM ('glad', 'sad')")
        connection.execute(f"CREATE TABLE public.every ({columns}, PRIMARY KEY (id))")
        if site == "dbs2":
            connection.execute(f"CREATE TABLE public.bound ({columns}); CREATE TABLE public.written ({columns})")

    binds = ", ".join(f":new.{name}" for name in OF_EVERY_TYPE)
    with handled(BOUND.format(folder=tmp_path / "state", binds=binds), tables, every=WRITE) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        user.execute(f"INSERT INTO every VALUES ({', '.join(value for _, value in OF_EVERY_TYPE.values())})")
        user.execute("UPDATE every SET big = big")
        network.settle()
        assert [error.message for error in network.sites["dbs2"].destination.errors(network.spec.name)] == []
        (wanted,) = user.execute("SELECT e::text FROM every e").fetchall()
        assert there.execute("SELECT b::text FROM bound b").fetchall() == [wanted]
        assert there.execute("SELECT w::text FROM written w").fetchall() == [wanted]
        assert there.execute("SELECT e::text FROM every e").fetchall() == [wanted]  # through `get_row_text`


FITS = """def fit(lcr, session):
    lcr.keep_columns(["id", "name"])
    lcr.execute(conflict_resolution=True)
"""


def test_handler_makes_rows_fit_where_a_column_mismatch_is_an_error(handled: Handled, tmp_path: Path) -> None:
    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute(
            f"CREATE TABLE public.people (id int PRIMARY KEY, name text{', extra int' if site == 'dbs1' else ''})"
        )

    text = (
        PEOPLE.format(folder=tmp_path / "state", handlers=HIDDEN)
        .replace("people:hide", "people:fit")
        .replace("[insert]", "[insert, update, delete]")
    )
    with handled(text + "column_mismatch: error\n", tables, people=FITS) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        user.execute("INSERT INTO people VALUES (1, 'ann', 5), (2, 'bob', 6)")
        user.execute("UPDATE people SET name = 'eve', extra = 7 WHERE id = 2")
        network.settle()
        assert network.sites["dbs2"].destination.errors(network.spec.name) == ()
        assert there.execute("SELECT * FROM people ORDER BY id").fetchall() == [(1, "ann"), (2, "eve")]
        user.execute("DELETE FROM people WHERE id = 1")
        network.settle()
        assert there.execute("SELECT * FROM people").fetchall() == [(2, "eve")]


def test_truncate_reaches_no_handler(handled: Handled, tmp_path: Path) -> None:
    def tables(_: str, connection: psycopg.Connection) -> None:
        connection.execute("CREATE TABLE public.people (id int PRIMARY KEY, name text)")

    with handled(
        PEOPLE.format(folder=tmp_path / "state", handlers=HIDDEN)
        .replace("people:hide", "people:keep")
        .replace("[insert]", "[delete]"),
        tables,
        people="def keep(lcr, session):\n    pass\n",
    ) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        user.execute("INSERT INTO people VALUES (1, 'ann')")
        user.execute("DELETE FROM people")
        network.settle()
        assert there.execute("SELECT id FROM people").fetchall() == [(1,)]
        user.execute("TRUNCATE people")
        network.settle()
        assert there.execute("SELECT id FROM people").fetchall() == []


TO_DOUBLES = """def keep(lcr, error, session):
    lcr.object_name = "doubles"
    try:
        lcr.execute(conflict_resolution=False)
    except Exception as refused:
        session.execute("INSERT INTO public.refusals VALUES ($1)", str(refused))
"""


@pytest.mark.parametrize(
    ("alter", "refused"),
    [
        ("CREATE UNIQUE INDEX ON public.doubles (id, name)", 0),
        pytest.param("ALTER TABLE public.doubles DROP COLUMN name", 1, marks=pytest.mark.soak),
        (
            "ALTER TABLE public.doubles ADD COLUMN more text; ALTER TABLE public.doubles ALTER COLUMN name TYPE"
            " varchar(20)",
            1,
        ),
    ],
)
def test_table_that_only_an_error_handler_writes_may_be_altered_meanwhile(
    handled: Handled, tmp_path: Path, alter: str, refused: int
) -> None:
    """The table is described again, and the handler is called again. It gets only an LCR that does not fit the table's
    new definition.
    """

    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute("CREATE TABLE public.people (id int PRIMARY KEY, name text)")
        if site == "dbs2":
            connection.execute(
                "CREATE TABLE public.doubles (id int, name text); CREATE TABLE public.refusals (why text); INSERT INTO"
                " people VALUES (1), (2), (3)"
            )

    handlers = 'error_handlers:\n  - {table: public.people, operations: [insert], function: "own:keep"}'
    with handled(PEOPLE.format(folder=tmp_path / "state", handlers=handlers), tables, own=TO_DOUBLES) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        for number in (1, 2, 3):
            user.execute("INSERT INTO people VALUES (%s, 'x')", (number,))
            network.settle()
            if number == 1:
                there.execute(alter)
        assert network.sites["dbs2"].destination.errors(network.spec.name) == ()
        assert [why.partition(":")[0] for (why,) in there.execute("TABLE refusals").fetchall()] == [
            "the LCR does not fit its table"
        ] * 2 * refused
        assert [key for (key,) in there.execute("SELECT id FROM doubles").fetchall()] == ([1] if refused else [1, 2, 3])


def test_trigger_switched_to_fire_always_fires_for_each_handlers_change(handled: Handled, tmp_path: Path) -> None:
    def tables(site: str, connection: psycopg.Connection) -> None:
        connection.execute(
            "CREATE TABLE public.people (id int PRIMARY KEY, name text); ALTER TABLE public.people REPLICA IDENTITY"
            " FULL"
        )
        if site == "dbs2":
            connection.execute(
                "CREATE TABLE public.seen (name text); CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN INSERT INTO public.seen VALUES (NEW.name); RETURN NEW; END $$;"
                "CREATE TRIGGER notes AFTER INSERT OR UPDATE ON public.people FOR EACH ROW EXECUTE FUNCTION"
                " public.note()"
            )

    handlers = 'dml_handlers:\n  - {table: public.people, function: "own:run"}'
    with handled(
        PEOPLE.format(folder=tmp_path / "state", handlers=handlers),
        tables,
        own="def run(lcr, session):\n    lcr.execute(conflict_resolution=True)\n",
    ) as network:
        user, there = network.sites["dbs1"].user, network.sites["dbs2"].user
        user.execute("INSERT INTO people VALUES (1, 'a')")
        network.settle()
        there.execute("ALTER TABLE people ENABLE ALWAYS TRIGGER notes")
        for first, second in (("b", "c"), ("d", "e")):
            with user.transaction():
                user.execute("UPDATE people SET name = %s", (first,))
                user.execute("UPDATE people SET name = %s", (second,))
            network.settle()
        assert there.execute("TABLE seen").fetchall() == [("b",), ("c",), ("d",), ("e",)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "class Value(dict):\n    def __iter__(self):\n        raise RuntimeError('x')\n    items = __iter__\ndef"
            " run(lcr, session):\n    session.execute('SELECT $1', Value(a=1))\n",
            "a value cannot be a parameter: RuntimeError",
        ),
        (
            "class Value(str):\n    def encode(self, *_):\n        raise RuntimeError('x')\ndef run(lcr, session):\n   "
            " session.execute('SELECT $1::text', Value('a'))\n",
            "a value cannot be a parameter: RuntimeError",
        ),
        ("def run(lcr, session):\n    session.execute('SELECT 1')\n", "its answer takes more memory than a call may"),
    ],
    ids=["object", "text", "memory"],
)
def test_error_of_a_handlers_sql_in_the_apply_server_is_the_handlers_error(
    handled: Handled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, told: str
) -> None:
    def tables(_: str, connection: psycopg.Connection) -> None:
        connection.execute("CREATE TABLE public.people (id int PRIMARY KEY, name text)")

    def fills(cursor: object) -> None:
        raise MemoryError

    if "memory" in told:
        monkeypatch.setattr(handler_sql, "_result", fills)
    handlers = 'dml_handlers:\n  - {table: public.people, operations: [insert], function: "own:run"}'
    with handled(PEOPLE.format(folder=tmp_path / "state", handlers=handlers), tables, own=text) as network:
        user = network.sites["dbs1"].user
        user.execute("INSERT INTO people VALUES (1, 'x')")
        network.settle()
        (error,) = network.sites["dbs2"].destination.errors(network.spec.name)
        assert told in error.message
