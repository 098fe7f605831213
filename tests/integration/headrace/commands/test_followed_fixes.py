"""The remedies of `check` and `status` for rows are followed as printed while changes arrive: both sides are equal and
the error queue is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from headrace.base.errors import INSTANTIATE_AGAIN, WHERE_OTHERS_WRITE, DestinationRestarted, HeadraceError
from headrace.databases.ports import Finding
from headrace.rules.table_settings import KeyColumns, TableSettings
from tests.support.apply.apply_driver import wait_for
from tests.support.apply.driver_on_threads import WAIT_S
from tests.support.apply.followed_fixes import FollowedFixes

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def site(
    source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FollowedFixes]:
    with closing(FollowedFixes(source_database, destination_database, tmp_path, monkeypatch)) as made:
        yield made


def test_printed_copy_clears_an_exchange_of_values_from_the_error_queue(site: FollowedFixes) -> None:
    """The source checks a unique key at the end of the statement (case 16 of the field)."""
    site.run("src", "CREATE TABLE slot (id int PRIMARY KEY, pos int, UNIQUE (pos) DEFERRABLE INITIALLY DEFERRED)")
    site.run("dst", "CREATE TABLE slot (id int PRIMARY KEY, pos int, UNIQUE (pos))")
    site.run("both", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    site.run("src", "INSERT INTO slot SELECT g, g FROM generate_series(1, 10) g")
    site.start("slot", "other")
    (fix,) = [found.fix for found in site.check() if "is DEFERRABLE" in found.problem]
    site.run(
        "src",
        "UPDATE slot SET pos = 11 - pos",
        "UPDATE slot SET pos = pos + 1",
        "INSERT INTO slot VALUES (11, 1)",
        # the copy has a part of it
        "BEGIN; UPDATE slot SET pos = 12 - pos; INSERT INTO other VALUES (1, 1); COMMIT",
        "INSERT INTO other VALUES (2, 2)",
    )
    site.wait_applied()
    assert len(site.errors()) > 1
    with site.users("INSERT INTO slot VALUES (1000 + {n}, 1000 + {n}); UPDATE other SET v = {n}"):
        assert site.follow(fix) == ["copy public.slot", "errors execute --all"]
    site.wait_applied()
    assert site.errors() == []
    site.assert_same()


def findings_of(site: FollowedFixes, tables: Sequence[str]) -> list[list[Finding]]:
    """Return the findings of `check` for the tables, after apply has checked them."""
    site.driver.outcome()
    site.driver.control.look_at_tables()
    found = site.check()
    return [[each for each in found if each.path.endswith(f"table public.{table}")] for table in tables]


FIELDS = {  # case 13a of the field: {n} is the number of the type
    "another field": ["ALTER TYPE addr{n} DROP ATTRIBUTE zip", "ALTER TYPE addr{n} ADD ATTRIBUTE country text"],
    "the same name": ["ALTER TYPE addr{n} DROP ATTRIBUTE zip, ADD ATTRIBUTE zip text"],
    "renamed": ["ALTER TYPE addr{n} RENAME ATTRIBUTE zip TO country"],
    "exchanged": [
        "ALTER TYPE addr{n} RENAME ATTRIBUTE zip TO x",
        "ALTER TYPE addr{n} RENAME ATTRIBUTE street TO zip",
        "ALTER TYPE addr{n} RENAME ATTRIBUTE x TO street",
    ],
    "added": ["ALTER TYPE addr{n} ADD ATTRIBUTE country text"],
    "another type": ["ALTER TYPE addr{n} DROP ATTRIBUTE zip", "ALTER TYPE addr{n} ADD ATTRIBUTE zip int"],
}


def with_composite_types(site: FollowedFixes, count: int) -> list[str]:
    """Make copied tables, each with a column of its own composite type, and one table without; return their names."""
    names = [f"person{n}" for n in range(count)]
    site.run("both", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    for n, name in enumerate(names):
        site.run(
            "both",
            f"CREATE TYPE addr{n} AS (street text, zip text)",
            f"CREATE TABLE {name} (id int PRIMARY KEY, home addr{n})",
        )
        site.run("src", f"INSERT INTO {name} SELECT g, ROW('Elm ' || g, '1000')::addr{n} FROM generate_series(1, 50) g")
    site.run("src", "INSERT INTO other VALUES (1, 0)")
    site.start(*names, "other")
    return names


def altered(site: FollowedFixes, n: int, fix: str) -> None:
    """Return the printed statement that alters a type of the destination, with names chosen where the user must choose."""
    if fix.startswith("ALTER TYPE ..."):
        ((fields,),) = site.run(
            "src",
            "SELECT string_agg(quote_ident(attname) || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)"
            f" FROM pg_attribute WHERE attrelid = 'addr{n}'::regclass AND NOT attisdropped",
        )
        to_column = (
            fix.partition("under the name it had, and give it to the column: ")[2]
            .replace("TYPE ...", f"TYPE addr{n}")
            .replace("::...", f"::addr{n}")
        )
        fix = f"ALTER TYPE addr{n} RENAME TO before{n}; CREATE TYPE addr{n} AS ({fields}); {to_column}"
    site.run("dst", fix)


def test_remedy_for_altered_composite_types_makes_sides_equal_under_load(site: FollowedFixes) -> None:
    names = with_composite_types(site, len(FIELDS))
    user = [
        f"INSERT INTO {name} SELECT 1000 + {{n}}, (SELECT home FROM {name} WHERE id = {{n}} % 50 + 1); UPDATE {name}"
        " SET home = home WHERE id = {n} % 50 + 1"
        for name in names
    ]
    with site.users(*user, "UPDATE other SET v = {n}") as written:
        written.more()
        for n, statements in enumerate(FIELDS.values()):
            site.run("src", *(statement.format(n=n) for statement in statements))
        written.more()
        found = wait_for(
            "something to be said of each", lambda: all(found := findings_of(site, names)) and found, WAIT_S
        )
        for n, each in enumerate(found):
            for alter in (finding.fix for finding in each if finding.fix.startswith("ALTER")):
                altered(site, n, alter)
        written.more()
        copies = [finding.fix.partition("; this stays")[0] for found in findings_of(site, names) for finding in found]
        assert set(site.follow(*copies)) == {
            f"copy public.{name}" for name, way in zip(names, FIELDS, strict=True) if way != "added"
        }
        written.more()
    site.wait_applied()
    assert site.follow("headrace errors execute FILE --all"), (
        "`errors list` prints this for transactions with rows of tables that were not copied"
    )
    assert site.errors() == []
    site.assert_same()
    assert not any(findings_of(site, names))


def test_copy_waits_for_the_printed_alter_and_changes_no_row(site: FollowedFixes) -> None:
    """Otherwise the copy would store values in the wrong field and remove the finding about the table."""
    ways = ("another field", "another type", "exchanged")
    names = with_composite_types(site, len(ways))
    before = {name: site.run("dst", f"SELECT id, home::text FROM {name} ORDER BY id") for name in names}
    for n, way in enumerate(ways):
        site.run("src", *(statement.format(n=n) for statement in FIELDS[way]))
    for n, name in enumerate(names):
        assert f"headrace copy FILE public.{name} " in site.shown(name).replace("`", " ")
        site.ask_to_copy(f"public.{name}")
        problem = wait_for(
            "the copy to be refused",
            lambda name=name: (now := site.tables()[name]).state == "FAILED" and now.problem,
            WAIT_S,
        )
        assert site.run("dst", f"SELECT id, home::text FROM {name} ORDER BY id") == before[name]
        altered(site, n, problem.partition(" At the destination: ")[2])
    wait_for("the copies", lambda: {each.state for each in site.tables().values()} == {"DONE"}, WAIT_S)
    site.wait_applied()
    assert site.errors() == []
    site.assert_same()
    assert not any(findings_of(site, names))


def test_remedy_for_an_unclear_truncate_loses_no_row_of_its_transaction(site: FollowedFixes) -> None:
    """The former advice, to delete it from the error queue, also lost its rows of other tables."""
    site.run(
        "src",
        "CREATE TABLE ev (id int PRIMARY KEY, v int) PARTITION BY HASH (id); CREATE TABLE ev_0 PARTITION OF ev FOR"
        " VALUES WITH (MODULUS 2, REMAINDER 0); CREATE TABLE ev_1 PARTITION OF ev FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
    )
    site.run("dst", "CREATE TABLE ev (id int PRIMARY KEY, v int)")
    site.run("both", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    site.run("src", "INSERT INTO ev SELECT g, g FROM generate_series(1, 100) g")
    site.start("ev", "other")
    with site.users(
        "UPDATE ev SET v = {n} WHERE id % 10 = 3",
        "INSERT INTO ev VALUES (1000 + {n}, 0); INSERT INTO other VALUES (1000 + {n}, 0)",
    ) as users:
        users.more()
        site.run("src", "INSERT INTO other VALUES (1, 1); TRUNCATE ev_0")
        (said,) = wait_for(
            "it to be in the error queue",
            lambda: [message for message in site.messages() if "TRUNCATE of partition" in message],
            WAIT_S,
        )
        # the rest is for a table that others write, too
        copy, _, rest = said.partition(". Where others")[0].partition("; then ")
        assert "`headrace copy FILE TABLE` with that table" in copy
        assert site.follow(
            copy.replace("`headrace copy FILE TABLE` with that table", "headrace copy FILE public.ev"), rest
        ) == ["copy public.ev", "errors execute --all"]
        users.more()
    site.wait_applied()
    assert site.errors() == []
    site.assert_same()


def test_remedy_for_tables_that_swap_names_gives_each_its_own_rows(site: FollowedFixes) -> None:
    for name in ("t0", "t1"):
        site.run("both", f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        site.run("src", f"INSERT INTO {name} SELECT g, '{name}' FROM generate_series(1, 100) g")
    site.start("t0", "t1")
    with site.users(
        "INSERT INTO t0 VALUES (1000 + {n}, 'written to t0'); UPDATE t0 SET v = v || '.' WHERE id = {n} % 100 + 1",
        "INSERT INTO t1 VALUES (1000 + {n}, 'written to t1')",
    ) as users:
        users.more()
        site.run(
            "src", "BEGIN; ALTER TABLE t0 RENAME TO x; ALTER TABLE t1 RENAME TO t0; ALTER TABLE x RENAME TO t1; COMMIT"
        )
        apply = f"apply:{site.apply}"
        printed = wait_for(
            "apply to wait for an operator", lambda: site.driver.outcome() or site.driver.control.status().hint, WAIT_S
        )
        assert site.follow(printed) == [f"stop {apply}", f"start {apply}"]
        users.more()
    site.wait_applied()
    assert site.errors() == []
    site.assert_same()
    assert site.run("dst", "SELECT DISTINCT rtrim(v, '.') FROM t0 WHERE id <= 100") == [("t1",)]


def test_remedy_for_unlogged_values_of_a_substitute_key_makes_sides_equal(site: FollowedFixes) -> None:
    """No action adds the missing values to changes already in the log: the remedy must not wait for them."""
    site.run("src", "CREATE TABLE p (id int PRIMARY KEY, code text, v int); ALTER TABLE p REPLICA IDENTITY FULL")
    site.run("dst", "CREATE TABLE p (id int, code text PRIMARY KEY, v int)")
    site.run("both", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    site.run("src", "INSERT INTO p SELECT g, 'c' || g, 0 FROM generate_series(1, 100) g")
    site.run("src", "INSERT INTO other VALUES (1, 0)")
    key = KeyColumns(owner="public", name="p", columns=("code",))
    site.start("p", "other", settings=TableSettings(key_columns=(key,)))
    with site.users(
        "UPDATE p SET v = {n} WHERE id = {n} % 100 + 1; INSERT INTO p VALUES (1000 + {n}, 'n{n}', 0)",
        "UPDATE other SET v = {n}; DELETE FROM p WHERE id = 900 + {n}",
    ) as users:
        users.more()
        site.run("src", "ALTER TABLE p REPLICA IDENTITY DEFAULT")
        users.more()
        said = str(
            wait_for(
                "it to be told",
                lambda: (
                    site.driver.outcome()
                    or site.driver.control.status().hint
                    or [each for each in site.messages() if "substitute key" in each]
                ),
                WAIT_S,
            )
        )
        assert "at the source: ALTER TABLE" in said
        site.run("src", said[said.index("ALTER TABLE") : said.index(";", said.index("ALTER TABLE"))])
        users.more()
        alone = said.partition(WHERE_OTHERS_WRITE)[0]  # no one else writes this table
        assert alone != said
        assert site.follow(
            alone.replace("`headrace copy FILE TABLE` with that table", "headrace copy FILE public.p")
        ) == [
            "copy public.p",
            "errors execute --all",
        ]
        users.more()
    site.wait_applied()
    assert site.errors() == []
    site.assert_same()


def test_driver_whose_schema_headrace_was_dropped_ends_with_a_remedy(site: FollowedFixes) -> None:
    """`test_ways_out_by_commands.py` follows the remedy."""
    site.run("both", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    site.start("other")
    site.run("dst", "DROP SCHEMA headrace CASCADE")
    site.run("src", "INSERT INTO other VALUES (1, 1)")

    def ended() -> HeadraceError | None:
        try:
            site.driver.outcome()
        except HeadraceError as error:
            return error
        return None

    error = wait_for("it to end", ended, WAIT_S)
    if isinstance(error, DestinationRestarted):
        # The driver asked for its epoch before it wrote: a replaced database has none, and its epochs start over.
        assert "went back from epoch" in error.message
    else:
        assert "the schema headrace is damaged there" in error.message
        assert error.hint == INSTANTIATE_AGAIN
