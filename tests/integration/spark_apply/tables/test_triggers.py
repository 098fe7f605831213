"""Triggers that fire for applied changes: they find other tables in the state that they had at the source."""

from __future__ import annotations

import random

import pytest

from headrace.rules.table_settings import TableSettings, TriggerFiring
from tests.support.session.seeds import seeds
from tests.support.ways.postgres_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

# The name of the table with the trigger sorts before those that it reads, and between them.
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, state text);
CREATE TABLE lines (id int PRIMARY KEY, order_id int, price int);
CREATE TABLE discounts (id int PRIMARY KEY, percent int);
CREATE SCHEMA seen;
CREATE TABLE seen.found (id int GENERATED ALWAYS AS IDENTITY, by text, line int, state text, percent int);
CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO seen.found (by, line, state, percent) SELECT TG_TABLE_NAME, NEW.id,
    (SELECT state FROM public.orders o WHERE o.id = 1), (SELECT percent FROM public.discounts d WHERE d.id = 1);
  RETURN NULL;
END $$;
CREATE TRIGGER look AFTER INSERT OR UPDATE ON lines FOR EACH ROW EXECUTE FUNCTION look();
ALTER TABLE lines ENABLE ALWAYS TRIGGER look;
"""
ALSO = (
    "CREATE TRIGGER look AFTER UPDATE ON discounts FOR EACH ROW EXECUTE FUNCTION look(); ALTER TABLE discounts"
    " ENABLE ALWAYS TRIGGER look;"
)
FOUND = "SELECT by, line, state, percent FROM seen.found ORDER BY id"


def prepared(pair: Pair, ddl: str) -> None:
    pair.create(ddl, ddl)
    pair.set(TableSettings(triggers=(TriggerFiring(owner="public", name="lines", trigger="look", fire="always"),)))


def test_trigger_sees_exactly_the_other_tables_earlier_rows(pair: Pair) -> None:
    prepared(pair, TABLES)
    pair.run(
        "BEGIN; INSERT INTO orders VALUES (1, 'new'); INSERT INTO discounts VALUES (1, 10); INSERT INTO lines VALUES"
        " (1, 1, 5), (2, 1, 5);"
        " UPDATE orders SET state = 'paid'; INSERT INTO lines VALUES (3, 1, 5); UPDATE discounts SET percent = 20;"
        " UPDATE lines SET price = 6 WHERE id = 1; DELETE FROM discounts; DELETE FROM lines WHERE id = 2; UPDATE orders"
        " SET state = 'sent'; COMMIT",
    )
    pair.apply()
    assert pair.errors() == ()
    here, there = pair.here_and_there(FOUND)
    assert there == here
    assert [row[2] for row in here] == ["new", "new", "paid", "paid"]


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("triggers of two tables", test=1, soak=40))
def test_triggers_of_two_tables_find_the_same_rows_as_at_the_source(pair: Pair, seed: int) -> None:
    """Transactions are applied one after the other, so the rows that their triggers find do not depend on which is
    first.
    """
    prepared(pair, TABLES + ALSO)
    rng = random.Random(seed)
    pair.run("INSERT INTO orders VALUES (1, 'new')", "INSERT INTO discounts VALUES (1, 0)")
    for turn in range(20):
        statements = [f"UPDATE orders SET state = '{turn}.0' WHERE id = 1"]
        statements += [
            rng.choice(
                [
                    f"UPDATE orders SET state = '{turn}.{step}' WHERE id = 1",
                    f"UPDATE discounts SET percent = {turn * 10 + step} WHERE id = 1",
                    f"INSERT INTO lines VALUES ({turn * 10 + step}, 1, {step})",
                    f"UPDATE lines SET price = price + 1 WHERE id % 10 = {step}",
                    f"DELETE FROM lines WHERE id % 10 = {step}",
                ]
            )
            for step in range(1, rng.randrange(2, 8))
        ]
        pair.run(f"BEGIN; {'; '.join(statements)}; COMMIT")
    pair.apply()
    assert pair.errors() == ()
    here, there = pair.here_and_there(FOUND)
    assert there == here
    for table in ("orders", "lines", "discounts"):
        pair.assert_same(f"SELECT * FROM {table} ORDER BY 1")


@pytest.mark.parametrize(("enabled", "fires"), [("ENABLE", False), ("ENABLE ALWAYS", True)])
def test_fire_always_fires_triggers_for_applied_changes_and_run_errors(
    pair: Pair, enabled: str, *, fires: bool
) -> None:
    """The firing property of the manuals. It does not say whether users' changes of the destination fire the trigger:
    they do.
    """
    table = "CREATE TABLE lines (id int PRIMARY KEY, price int)"
    pair.create(
        table,
        (
            f"{table}; CREATE SCHEMA seen; CREATE TABLE seen.fired (line int);"
            " CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen.fired VALUES"
            " (NEW.id); RETURN NULL; END $$; CREATE TRIGGER note AFTER INSERT OR UPDATE ON lines FOR EACH ROW EXECUTE"
            f" FUNCTION note(); ALTER TABLE lines {enabled} TRIGGER note"
        ),
    )
    pair.set(
        TableSettings(
            triggers=(TriggerFiring(owner="public", name="lines", trigger="note", fire="always" if fires else "once"),)
        )
    )

    def fired() -> list[int]:
        return [line for (line,) in pair.there.execute("SELECT line FROM seen.fired ORDER BY ctid").fetchall()]

    pair.there.execute("INSERT INTO lines VALUES (3, 0)")  # conflicts with the source's row
    pair.run(
        "INSERT INTO lines VALUES (1, 5), (2, 5)",
        "UPDATE lines SET price = 6 WHERE id = 1",
        "INSERT INTO lines VALUES (3, 5)",
    )
    engine = pair.apply()
    assert fired() == [3, *([1, 2, 1] if fires else [])]
    (error,) = pair.errors()
    pair.there.execute("DELETE FROM lines WHERE id = 3")
    assert engine.execute_errors([error.number]) == {error.number: ""}
    pair.assert_same("SELECT * FROM lines ORDER BY 1")
    assert fired() == [3, *([1, 2, 1, 3] if fires else [])]


def test_rule_of_the_destination_runs_for_every_row_of_a_set(pair: Pair) -> None:
    table = "CREATE TABLE p (id int PRIMARY KEY, v int)"
    pair.create(
        table,
        (
            f"{table}; CREATE TABLE seen (id int); CREATE RULE note AS ON INSERT TO p DO ALSO INSERT INTO seen VALUES"
            " (NEW.id); ALTER TABLE p ENABLE ALWAYS RULE note"
        ),
    )
    pair.run("INSERT INTO p SELECT i, i FROM generate_series(1, 5000) i")
    pair.apply()
    assert pair.errors() == ()
    assert pair.there.execute("SELECT count(*), sum(id) FROM seen").fetchone() == (5000, 12502500)


def test_trigger_switched_to_fire_always_fires_for_each_change_of_a_row(pair: Pair) -> None:
    table = "CREATE TABLE lines (id int PRIMARY KEY, price int)"
    pair.create(
        table,
        (
            f"{table}; CREATE TABLE seen (price int);"
            " CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES"
            " (NEW.price); RETURN NULL; END $$; CREATE TRIGGER note AFTER UPDATE ON lines FOR EACH ROW EXECUTE FUNCTION"
            " note()"
        ),
    )
    pair.run("INSERT INTO lines VALUES (1, 1)")
    engine = pair.apply()
    pair.there.execute("ALTER TABLE lines ENABLE ALWAYS TRIGGER note")
    pair.run("BEGIN; UPDATE lines SET price = 2; UPDATE lines SET price = 3; COMMIT")
    pair.more(engine)
    assert pair.errors() == ()
    assert pair.there.execute("SELECT price FROM seen ORDER BY 1").fetchall() == [(2,), (3,)]
