"""Plans of DDL changes: what runs, what is there already, what is refused, and what is a conflict."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import DataError
from headrace.databases.postgres.ddl.key_text import key_text
from headrace.databases.postgres.ddl.planning import Planned, check_result, other_values, plan_changes
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.scn import ObjectNumber
from headrace.lcr.structure import (
    ColumnPart,
    ConstraintPart,
    IndexPart,
    Part,
    PartKind,
    PartName,
    Structure,
)
from tests.support.values.hostile_names import HOSTILE, names

VERSION = 18


def col(number: int, name: str, type_name: str = "integer", **attributes: Any) -> ColumnPart:
    return ColumnPart(number=number, name=name, type_name=type_name, **attributes)


def con(number: int, name: str, definition: str, **attributes: Any) -> ConstraintPart:
    """A constraint whose type follows from its definition."""
    kinds = {"PRIMARY": "p", "UNIQUE": "u", "CHECK": "c", "EXCLUDE": "x", "FOREIGN": "f"}
    return ConstraintPart(
        number=number, name=name, type=kinds[definition.split(maxsplit=1)[0]], definition=definition, **attributes
    )


def idx(number: int, name: str, columns: str, **attributes: Any) -> IndexPart:
    definition = f"CREATE INDEX {name} ON hr.jobs USING btree ({columns})"
    return IndexPart(number=number, name=name, definition=definition, **attributes)


def table(*parts: Part, **attributes: Any) -> Structure:
    return Structure(
        owner=attributes.pop("owner", "hr"),
        name=attributes.pop("name", "jobs"),
        columns=tuple(part for part in parts if isinstance(part, ColumnPart)),
        constraints=tuple(part for part in parts if isinstance(part, ConstraintPart)),
        indexes=tuple(part for part in parts if isinstance(part, IndexPart)),
        **attributes,
    )


def record(before: Structure | None, after: Structure | None, **attributes: Any) -> DdlRecord:
    values = {"tag": "ALTER TABLE", "is_known": True, "version": VERSION, **attributes}
    return DdlRecord(relation=ObjectNumber(16400), before=before, after=after, **values)


def short(statements: tuple[str, ...]) -> list[str]:
    """Statements without what they have in common."""
    return [each.replace('ALTER TABLE ONLY "hr"."jobs" ', "").replace('"hr".', "") for each in statements]


def statements_of(planned: Planned, between: Structure) -> list[str]:
    """All statements, where the first ones leave the table in this form."""
    return short((*planned.statements, *planned.last_statements(between)))


ID = col(1, "id")
KEY = con(20, "jobs_pkey", "PRIMARY KEY (id)")
CHECK = con(21, "positive", "CHECK ((id > 0))")
BY_ID = idx(30, "by_id", "id")
TEXT = col(2, "t", "text")

# before, after, the statements; the destination is as before
CHANGES: dict[str, tuple[Structure, Structure, list[str]]] = {
    "add column": (table(ID), table(ID, TEXT), ['ADD COLUMN "t" text']),
    "add column with a collation": (
        table(ID),
        table(ID, col(2, "t", "text", collation='"C"')),
        ['ADD COLUMN "t" text COLLATE "C"'],
    ),
    "add column that is NOT NULL": (
        table(ID),
        table(ID, col(2, "t", "text", not_null=True)),
        ['ADD COLUMN "t" text NOT NULL'],
    ),
    "add columns in the order of their numbers": (
        table(ID),
        table(ID, col(2, "z"), col(3, "a")),
        ['ADD COLUMN "z" integer', 'ADD COLUMN "a" integer'],
    ),
    "drop column": (table(ID, TEXT), table(ID), ['DROP COLUMN "t"']),
    "drop column with its index and its constraint": (
        table(ID, TEXT, idx(30, "i", "t"), con(21, "k", "UNIQUE (t)")),
        table(ID),
        ['DROP INDEX "i"', 'DROP CONSTRAINT "k"', 'DROP COLUMN "t"'],
    ),
    "drop column and add it again": (
        table(ID, TEXT),
        table(ID, col(3, "t", "text")),
        ['DROP COLUMN "t"', 'ADD COLUMN "t" text'],
    ),
    "drop column and add it again with its constraint": (
        table(ID, TEXT, con(21, "k", "UNIQUE (t)")),
        table(ID, col(3, "t", "text"), con(22, "k", "UNIQUE (t)")),
        ['DROP COLUMN "t"', 'ADD COLUMN "t" text', 'ADD CONSTRAINT "k" UNIQUE (t)'],
    ),
    "rename column": (table(ID, TEXT), table(ID, col(2, "u", "text")), ['RENAME COLUMN "t" TO "u"']),
    "rename column, drop and add another": (
        table(ID, TEXT),
        table(col(2, "id", "text"), col(3, "t")),
        ['DROP COLUMN "id"', 'RENAME COLUMN "t" TO "id"', 'ADD COLUMN "t" integer'],
    ),
    "exchange names of columns": (
        table(ID, TEXT),
        table(col(1, "t"), col(2, "id", "text")),
        [
            'RENAME COLUMN "id" TO "headrace_0"',
            'RENAME COLUMN "t" TO "id"',
            'RENAME COLUMN "headrace_0" TO "t"',
        ],
    ),
    "type": (
        table(ID, col(2, "t", "character varying(5)")),
        table(ID, TEXT),
        ['ALTER COLUMN "t" SET DATA TYPE text'],
    ),
    "type with another default": (
        table(ID, col(2, "t", "character varying(5)", default="'x'::character varying")),
        table(ID, col(2, "t", "text", default="'x'::text")),
        [
            'ALTER COLUMN "t" DROP DEFAULT',
            'ALTER COLUMN "t" SET DATA TYPE text',
            """ALTER COLUMN "t" SET DEFAULT 'x'::text""",
        ],
    ),
    "default": (table(ID), table(col(1, "id", default="5")), ['ALTER COLUMN "id" SET DEFAULT 5']),
    "no default": (table(col(1, "id", default="5")), table(ID), ['ALTER COLUMN "id" DROP DEFAULT']),
    "NOT NULL": (table(ID), table(col(1, "id", not_null=True)), ['ALTER COLUMN "id" SET NOT NULL']),
    "no NOT NULL": (table(col(1, "id", not_null=True)), table(ID), ['ALTER COLUMN "id" DROP NOT NULL']),
    "add constraint": (table(ID), table(ID, CHECK), ['ADD CONSTRAINT "positive" CHECK ((id > 0))']),
    "add primary key": (
        table(ID),
        table(col(1, "id", not_null=True), KEY),
        ['ALTER COLUMN "id" SET NOT NULL', 'ADD CONSTRAINT "jobs_pkey" PRIMARY KEY (id)'],
    ),
    "drop constraint": (table(ID, CHECK), table(ID), ['DROP CONSTRAINT "positive"']),
    "constraint anew": (
        table(ID, CHECK),
        table(ID, con(22, "positive", "CHECK ((id > 1))")),
        ['DROP CONSTRAINT "positive"', 'ADD CONSTRAINT "positive" CHECK ((id > 1))'],
    ),
    "rename constraint": (
        table(ID, CHECK),
        table(ID, con(21, "above", "CHECK ((id > 0))")),
        ['RENAME CONSTRAINT "positive" TO "above"'],
    ),
    "add constraint that is not valid": (
        table(ID),
        table(ID, con(21, "positive", "CHECK ((id > 0)) NOT VALID")),
        ['ADD CONSTRAINT "positive" CHECK ((id > 0)) NOT VALID'],
    ),
    "validate constraint": (
        table(ID, con(21, "positive", "CHECK ((id > 0)) NOT VALID")),
        table(ID, CHECK),
        ['VALIDATE CONSTRAINT "positive"'],
    ),
    "create index": (table(ID), table(ID, BY_ID), ["CREATE INDEX by_id ON hr.jobs USING btree (id)"]),
    "drop index": (table(ID, BY_ID), table(ID), ['DROP INDEX "by_id"']),
    "rename index": (table(ID, BY_ID), table(ID, idx(30, "i", "id")), ['ALTER INDEX "by_id" RENAME TO "i"']),
    "index anew": (
        table(ID, BY_ID),
        table(ID, idx(31, "by_id", "id DESC")),
        ['DROP INDEX "by_id"', "CREATE INDEX by_id ON hr.jobs USING btree (id DESC)"],
    ),
    "index that becomes a constraint": (
        table(ID, idx(30, "i", "id")),
        table(ID, con(21, "k", "UNIQUE (id)")),
        ['DROP INDEX "i"', 'ADD CONSTRAINT "k" UNIQUE (id)'],
    ),
    "constraint takes the name of a renamed index": (
        table(ID, CHECK, idx(30, "i", "id")),
        table(ID, con(21, "i", "CHECK ((id > 0))"), idx(30, "j", "id")),
        ['ALTER INDEX "i" RENAME TO "j"', 'RENAME CONSTRAINT "positive" TO "i"'],
    ),
}


def without_work(planned: Planned) -> None:
    assert not planned.refusal
    assert not planned.has_work
    assert not planned.statements


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_made_where_the_destination_is_as_before(name: str) -> None:
    before, after, wanted = CHANGES[name]
    planned = plan_changes(record(before, after), before, VERSION)
    assert not planned.refusal
    between = table(ID) if name == "drop column and add it again with its constraint" else before
    assert statements_of(planned, between) == wanted
    assert planned.has_work == bool(wanted)
    check_result(planned, after, {})


# Both forms are the same, and the values are not.
AGAIN = [name for name in CHANGES if name.startswith("drop column and add it again")]


@pytest.mark.parametrize("name", [each for each in CHANGES if each not in AGAIN])
def test_change_is_passed_over_where_the_destination_is_as_after(name: str) -> None:
    before, after, _ = CHANGES[name]
    planned = plan_changes(record(before, after), after, VERSION)
    without_work(planned)
    assert planned.passed_over


@pytest.mark.parametrize("name", CHANGES)
def test_result_that_is_still_as_before_is_no_result(name: str) -> None:
    before, after, wanted = CHANGES[name]
    planned = plan_changes(record(before, after), before, VERSION)
    if wanted and name not in AGAIN:
        with pytest.raises(DataError, match="the result is another one"):
            check_result(planned, before, {})
    else:
        check_result(planned, before, {})


NAMED = {  # before, after, here, what the message says
    "added column of another type": (table(ID), table(ID, TEXT), table(ID, col(2, "t")), 'column "t"'),
    "added column without the default": (
        table(ID),
        table(ID, col(2, "t", "text", default="'x'::text")),
        table(ID, TEXT),
        'column "t"',
    ),
    "dropped column of another type": (table(ID, TEXT), table(ID), table(ID, col(2, "t")), 'column "t"'),
    "renamed column under both names": (
        table(ID, TEXT),
        table(ID, col(2, "u", "text")),
        table(ID, TEXT, col(3, "u", "text")),
        'column "t"',
    ),
    "renamed column under neither name": (table(ID, TEXT), table(ID, col(2, "u", "text")), table(ID), 'column "u"'),
    "another default": (
        table(ID),
        table(col(1, "id", default="5")),
        table(col(1, "id", default="6")),
        'default of column "id"',
    ),
    "altered column that is missing": (
        table(ID, TEXT),
        table(ID, col(2, "t", "text", not_null=True)),
        table(ID),
        '"t"',
    ),
    "another constraint": (table(ID), table(ID, CHECK), table(ID, con(5, "positive", "CHECK (true)")), '"positive"'),
    "another dropped constraint": (
        table(ID, CHECK),
        table(ID),
        table(ID, con(5, "positive", "CHECK (true)")),
        '"positive"',
    ),
    "another index": (table(ID), table(ID, BY_ID), table(ID, idx(5, "by_id", "id DESC")), '"by_id"'),
    "exchanged columns of one type": (
        table(ID, col(2, "n")),
        table(col(1, "n"), col(2, "id")),
        table(ID, col(2, "n")),
        "exchanged their names",
    ),
    "dropped column whose name another one takes": (
        table(ID, TEXT),
        table(col(2, "id", "text")),
        table(col(1, "id", "bigint"), TEXT),
        'column "id"',
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_part_that_is_neither_as_before_nor_as_after_is_a_conflict(name: str) -> None:
    before, after, here, words = NAMED[name]
    with pytest.raises(DataError) as caught:
        plan_changes(record(before, after), here, VERSION)
    assert words in caught.value.message
    assert caught.value.hint


def test_conflict_names_all_three_definitions() -> None:
    before, after = table(ID), table(col(1, "id", default="5"))
    with pytest.raises(DataError) as caught:
        plan_changes(record(before, after), table(col(1, "id", default="6")), VERSION)
    for words in ("here: integer DEFAULT 6", "before the change: integer;", "after it: integer DEFAULT 5"):
        assert words in caught.value.message


def test_attribute_of_a_column_that_the_change_left_alone_is_not_compared() -> None:
    here = table(col(1, "id", "bigint", not_null=True))
    planned = plan_changes(record(table(ID), table(col(1, "id", default="5"))), here, VERSION)
    assert statements_of(planned, here) == ['ALTER COLUMN "id" SET DEFAULT 5']
    check_result(planned, table(col(1, "id", "bigint", not_null=True, default="5")), {})


def test_another_owner_is_nothing_to_do() -> None:
    without_work(plan_changes(record(table(ID), table(ID, role="other")), table(ID), VERSION))


def test_only_what_is_still_to_do_is_done() -> None:
    before, after = table(ID), table(ID, TEXT, BY_ID)
    here = table(ID, TEXT)
    planned = plan_changes(record(before, after), here, VERSION)
    assert planned.passed_over == ('column "t"',)
    assert statements_of(planned, here) == ["CREATE INDEX by_id ON hr.jobs USING btree (id)"]


# ------------------------------------------------------------------ old rows

OLDER = [
    (col(2, "at", "date", default="now()"), "2026-11-28", ["DEFAULT '2026-11-28'", "SET DEFAULT now()"]),
    (col(2, "t", "text"), "it's", ["DEFAULT 'it''s'", "DROP DEFAULT"]),
    (col(2, "t", "text", default="'x'::text"), None, [None, "SET DEFAULT 'x'::text"]),
    (col(2, "t", "text", default="1", not_null=True), "1", ["DEFAULT '1' NOT NULL", "SET DEFAULT 1"]),
    (col(2, "t", "text"), "\\", ["DEFAULT E'\\\\'", "DROP DEFAULT"]),
    (col(2, "t", "text"), "", ["DEFAULT ''", "DROP DEFAULT"]),
]


@pytest.mark.parametrize(("column", "older", "words"), OLDER)
def test_old_rows_get_the_value_that_they_got_at_the_source(column, older, words) -> None:
    planned = plan_changes(record(table(ID), table(ID, column), older={column.name: older}), table(ID), VERSION)
    name = f'"{column.name}"'
    assert statements_of(planned, table(ID)) == [
        " ".join(filter(None, [f"ADD COLUMN {name} {column.type_name}", words[0]])),
        f"ALTER COLUMN {name} {words[1]}",
    ]
    check_result(planned, table(ID, column), {column.name: older} if older is not None else {})
    with pytest.raises(DataError, match="another value in rows"):
        check_result(planned, table(ID, column), {column.name: "other"})


# ------------------------------------------------------------------ what follows columns


def test_constraints_that_follow_a_renamed_column_get_no_statement() -> None:
    before = table(ID, TEXT, KEY, CHECK, BY_ID)
    after = table(
        col(1, "job"),
        TEXT,
        con(20, "jobs_pkey", "PRIMARY KEY (job)"),
        con(21, "positive", "CHECK ((job > 0))"),
        idx(30, "by_id", "job"),
    )
    planned = plan_changes(record(before, after), before, VERSION)
    assert statements_of(planned, after) == ['RENAME COLUMN "id" TO "job"']
    check_result(planned, after, {})


def test_index_that_was_made_anew_beside_a_rename_is_made_anew() -> None:
    before, after = table(ID, BY_ID), table(col(1, "job"), idx(31, "by_id", "job DESC"))
    planned = plan_changes(record(before, after), before, VERSION)
    assert statements_of(planned, table(col(1, "job"), idx(30, "by_id", "job"))) == [
        'RENAME COLUMN "id" TO "job"',
        'DROP INDEX "by_id"',
        "CREATE INDEX by_id ON hr.jobs USING btree (job DESC)",
    ]


def test_own_index_of_the_destination_may_follow_a_renamed_column() -> None:
    here = table(ID, idx(5, "own", "id"))
    planned = plan_changes(record(table(ID), table(col(1, "job"))), here, VERSION)
    check_result(planned, table(col(1, "job"), idx(5, "own", "job")), {})


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ((), "is not at the destination"),
        ((idx(5, "by_id", "id DESC"),), "is another one at the destination, and stays"),
    ],
    ids=["missing", "another"],
)
def test_index_that_the_destination_never_had_hinders_no_rename(own: tuple[IndexPart, ...], words: str) -> None:
    here = table(ID, *own)
    planned = plan_changes(record(table(ID, BY_ID), table(col(1, "job"), idx(30, "by_id", "job"))), here, VERSION)
    assert planned.left_out == (f'index "by_id" {words}',)
    result = table(col(1, "job"), *(idx(5, each.name, "job DESC") for each in own))
    assert statements_of(planned, result) == ['RENAME COLUMN "id" TO "job"']
    check_result(planned, result, {})


def test_generated_column_may_follow_a_renamed_column() -> None:
    def made(of: str) -> ColumnPart:
        return col(2, "g", generated="s", default=f"({of} + 1)")

    before, after = table(ID, made("id")), table(col(1, "job"), made("job"))
    planned = plan_changes(record(before, after), before, VERSION)
    assert statements_of(planned, after) == ['RENAME COLUMN "id" TO "job"']
    check_result(planned, after, {})


def test_constraint_that_calls_functions_may_follow_but_is_not_made() -> None:
    before = table(ID, con(21, "k", "CHECK (hr.f(id))", calls=True))
    after = table(col(1, "job"), con(21, "k", "CHECK (hr.f(job))", calls=True))
    planned = plan_changes(record(before, after), before, VERSION)
    assert statements_of(planned, after) == ['RENAME COLUMN "id" TO "job"']
    with pytest.raises(DataError, match="may do anything"):
        planned.last_statements(table(col(1, "job"), con(21, "k", "CHECK (hr.other(job))")))


# ------------------------------------------------------------------ effects of statements


@pytest.mark.parametrize(
    ("before", "after", "here", "result", "is_right"),
    [
        (table(ID, TEXT), table(ID), table(ID, TEXT, idx(5, "own", "t")), table(ID), False),
        (table(ID, TEXT), table(ID), table(ID, TEXT, idx(5, "own", "id")), table(ID, idx(5, "own", "id")), True),
        (table(ID), table(ID, TEXT), table(ID), table(ID, TEXT, col(3, "u")), False),
        (table(ID), table(ID, TEXT), table(ID), table(ID, col(2, "t")), False),
        (table(ID), table(ID, TEXT), table(ID), table(ID, TEXT, children=1), False),
        (
            table(col(1, "id", not_null=True)),
            table(col(1, "id", not_null=True), KEY),
            table(ID),
            table(col(1, "id", not_null=True), KEY),
            True,
        ),
        (table(ID), table(ID, BY_ID), table(ID, CHECK), table(ID, BY_ID), False),
        (table(ID), table(ID, TEXT), table(ID), table(col(1, "id", default="1"), TEXT), False),
    ],
    ids=[
        "own index goes with the column",
        "own index stays",
        "another new column",
        "another type",
        "another child",
        "NOT NULL that the key brings",
        "constraint is lost",
        "another column changed",
    ],
)
def test_result_has_every_other_part_as_it_was(before, after, here, result, is_right) -> None:
    planned = plan_changes(record(before, after), here, VERSION)
    if is_right:
        check_result(planned, result, {})
    else:
        with pytest.raises(DataError, match="the result is another one"):
            check_result(planned, result, {})


def test_table_that_is_missing_afterwards_is_no_result() -> None:
    planned = plan_changes(record(table(ID), table(ID, TEXT)), table(ID), VERSION)
    with pytest.raises(DataError):
        check_result(planned, None, {})


# ------------------------------------------------------------------ gone


@pytest.mark.parametrize("part", [BY_ID, CHECK, con(21, "k", "UNIQUE (id)")], ids=lambda part: part.name)
def test_dropped_part_that_no_record_described_stays_and_is_named(part: Part) -> None:
    """It may be the destination's own. The constraint of a NOT NULL is dropped under its name, which is free here."""
    change = record(table(ID), table(ID), gone=(part.key, PartName(PartKind.INDEX, "no")))
    planned = plan_changes(change, table(ID, part), VERSION)
    assert not planned.has_work
    assert planned.refusal == f"{part.key} was dropped, and what it was before that is not known: it stays"
    without_work(plan_changes(change, table(ID), VERSION))


def test_dropped_not_null_leaves_the_check_of_its_name() -> None:
    mine = con(21, "jobs_id_not_null", "CHECK ((id > 0))")
    strict = col(1, "id", not_null=True)
    change = record(table(strict), table(ID), gone=(mine.key,))
    planned = plan_changes(change, table(strict, mine), VERSION)
    assert statements_of(planned, table(ID, mine)) == ['ALTER COLUMN "id" DROP NOT NULL']
    assert planned.left_out == (f"{mine.key} was dropped, and what it was before that is not known: it stays",)
    check_result(planned, table(ID, mine), {})


# ------------------------------------------------------------------ values of columns that are there already


@pytest.mark.parametrize(
    ("older", "kept", "is_named"),
    [
        ({"t": "x"}, {"t": "x"}, False),
        ({"t": "x"}, {"t": "y"}, True),
        ({"t": "x"}, {}, True),
        ({}, {"t": "y"}, True),
        ({}, {}, False),
        ({"t": None}, {}, False),
    ],
)
def test_older_rows_of_a_column_that_is_there_are_compared(
    older: dict[str, str | None], kept: dict[str, str | None], is_named: bool
) -> None:
    planned = plan_changes(record(table(ID), table(ID, TEXT), older=older), table(ID, TEXT), VERSION)
    assert not planned.has_work
    found = other_values(planned, kept)
    assert [each.split(":")[0] for each in found] == ['column "t"'] * is_named


def test_older_rows_of_a_column_that_is_added_are_not_compared() -> None:
    planned = plan_changes(record(table(ID), table(ID, TEXT), older={"t": "x"}), table(ID), VERSION)
    assert other_values(planned, {"t": "y"}) == ()


def test_dropped_column_that_no_record_described_is_a_conflict() -> None:
    change = record(table(ID), table(ID), gone=(PartName(PartKind.COLUMN, "t"),))
    with pytest.raises(DataError, match='column "t"'):
        plan_changes(change, table(ID, TEXT), VERSION)
    without_work(plan_changes(change, table(ID), VERSION))


# ------------------------------------------------------------------ refusals

FOREIGN = con(22, "to_other", "FOREIGN KEY (id) REFERENCES hr.other(id)")
REFUSED = {  # the record, and a word of the reason; the destination is as before
    "another version": (record(table(ID), table(ID, TEXT), version=17), "major version"),
    "created table": (record(None, table(ID)), "did not publish the table"),
    "unknown before": (record(None, table(ID), is_known=False), "not known"),
    "changes between": (record(table(ID), table(ID, TEXT), is_known=False), "not known"),
    "dropped table": (record(table(ID), None), "the table was dropped"),
    "renamed table": (record(table(ID), table(ID, name="tasks")), "other names"),
    "another schema": (record(table(ID), table(ID, owner="old")), "other names"),
    "partitioned table": (record(table(ID, kind="p"), table(ID, TEXT, kind="p")), "partition"),
    "partition": (
        record(table(ID, parents=1, is_partition=True), table(ID, parents=1, is_partition=True)),
        "partition",
    ),
    "parent": (record(table(ID), table(ID, children=1)), "inherit"),
    "unlogged": (record(table(ID), table(ID, persistence="u")), "unlogged"),
    "new values": (record(table(ID), table(col(1, "id", "bigint")), rewritten=4), "anew"),
    "volatile default": (record(table(ID), table(ID, col(2, "r", default="random()")), rewritten=2), "anew"),
    "new values in another storage": (record(table(ID), table(ID, TEXT), rewritten=8), "anew"),
    "identity column": (record(table(ID), table(ID, col(2, "n", identity="a", not_null=True))), "identity"),
    "identity added": (record(table(ID), table(col(1, "id", identity="d"))), "identity"),
    "identity removed": (record(table(col(1, "id", identity="d")), table(ID)), "identity"),
    "generated column with a function": (
        record(table(ID), table(ID, col(2, "g", generated="v", default="hr.f()", calls=True))),
        "default of",
    ),
    "other expression": (
        record(table(col(1, "g", generated="v", default="1")), table(col(1, "g", generated="v", default="2"))),
        "generated",
    ),
    "expression removed": (record(table(col(1, "g", generated="s", default="1")), table(col(1, "g"))), "generated"),
    "default with a function": (record(table(ID), table(col(1, "id", default="hr.f()", calls=True))), "default of"),
    "new column with a function": (record(table(ID), table(ID, col(2, "n", default="hr.f()", calls=True))), "default"),
    "check with a function": (record(table(ID), table(ID, con(9, "k", "CHECK (hr.f())", calls=True))), "function"),
    "index with a function": (record(table(ID), table(ID, idx(9, "i", "hr.f(id)", calls=True))), "function"),
    "NOT NULL that is not valid": (record(table(ID), table(col(1, "id", not_null=True, not_valid=True))), "not valid"),
    "foreign key": (record(table(ID), table(ID, FOREIGN)), "not known which table"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_change_that_is_not_replicated_is_refused_with_the_reason(name: str) -> None:
    change, words = REFUSED[name]
    planned = plan_changes(change, change.before, VERSION)
    assert words in planned.refusal
    assert not planned.has_work
    assert not planned.statements


IN_BOTH_FORMS = (
    "identity column",
    "identity added",
    "generated column with a function",
    "default with a function",
    "check with a function",
    "index with a function",
    "foreign key",
)


@pytest.mark.parametrize("name", IN_BOTH_FORMS)
def test_change_that_is_not_replicated_is_passed_over_where_it_was_made(name: str) -> None:
    change, _ = REFUSED[name]
    without_work(plan_changes(change, change.after, VERSION))


def test_refused_change_is_no_conflict() -> None:
    change, words = REFUSED["identity column"]
    assert words in plan_changes(change, table(ID, col(2, "n", "text")), VERSION).refusal


def test_missing_table_is_a_refusal() -> None:
    assert "no such table" in plan_changes(record(table(ID), table(ID, TEXT)), None, VERSION).refusal


@pytest.mark.parametrize("kind", ["p", "inherits"])
def test_table_of_another_kind_is_a_refusal(kind: str) -> None:
    here = table(ID, children=1) if kind == "inherits" else table(ID, kind=kind)
    assert "at the destination" in plan_changes(record(table(ID), table(ID, TEXT)), here, VERSION).refusal


@pytest.mark.parametrize(
    "after",
    [
        table(ID, idx(30, "i", "id")),
        table(ID, IndexPart(number=30, name="by_id", definition=f"{BY_ID.definition} WITH (fillfactor='50')")),
    ],
    ids=["renamed", "altered"],
)
def test_altered_index_that_is_not_at_the_destination_is_left_out(after: Structure) -> None:
    """It is being made outside the transactions, for example."""
    planned = plan_changes(record(table(ID, BY_ID), after), table(ID), VERSION)
    assert "is not at the destination" in planned.refusal


def test_index_made_anew_is_made_where_it_was_missing() -> None:
    after = table(ID, idx(31, "by_id", "id DESC"))
    planned = plan_changes(record(table(ID, BY_ID), after), table(ID), VERSION)
    assert statements_of(planned, table(ID)) == ["CREATE INDEX by_id ON hr.jobs USING btree (id DESC)"]


@pytest.mark.parametrize(
    ("before", "after", "here", "statement"),
    [
        (
            col(1, "id", default="hr.f()", calls=True),
            col(1, "id", default="5"),
            col(1, "id", default="6"),
            "SET DEFAULT 5",
        ),
        (col(1, "id", default="1"), col(1, "id", default="5"), ID, "SET DEFAULT 5"),
        (col(1, "id", not_null=True, not_valid=True), col(1, "id", not_null=True), ID, "SET NOT NULL"),
    ],
    ids=["default that was not replicated", "no default to lose", "NOT NULL that was not valid"],
)
def test_attribute_that_was_not_replicated_before_is_no_conflict(before, after, here, statement) -> None:
    planned = plan_changes(record(table(before), table(after)), table(here), VERSION)
    assert statements_of(planned, table(here)) == [f'ALTER COLUMN "id" {statement}']
    check_result(planned, table(after), {})


def test_functions_do_not_matter_for_what_is_dropped_or_renamed() -> None:
    before = table(col(1, "id", default="hr.f()", calls=True), idx(30, "i", "hr.f(id)", calls=True))
    after = table(col(1, "job", default="hr.f()", calls=True))
    planned = plan_changes(record(before, after), before, VERSION)
    assert statements_of(planned, after) == ['DROP INDEX "i"', 'RENAME COLUMN "id" TO "job"']


def test_foreign_key_beside_a_column_is_left_out_alone() -> None:
    here, after = table(ID), table(ID, TEXT, con(22, "to_other", "FOREIGN KEY (t) REFERENCES hr.other(t)"))
    planned = plan_changes(record(here, after), here, VERSION, {"to_other": "hr.other is not level"})
    assert planned.left_out == ('constraint "to_other": hr.other is not level',)
    assert statements_of(planned, here) == ['ADD COLUMN "t" text']
    check_result(planned, table(ID, TEXT), {})


@pytest.mark.parametrize("reason", ["", "hr.other is not level"])
def test_foreign_key_that_is_made_again_with_its_column_is_made_or_left_out(reason: str) -> None:
    of = "FOREIGN KEY (t) REFERENCES hr.other(t)"
    before, after = table(ID, TEXT, con(22, "k", of)), table(ID, col(3, "t", "text"), con(23, "k", of))
    planned = plan_changes(record(before, after), before, VERSION, {"k": reason})
    assert planned.left_out == ((f'constraint "k": {reason}',) if reason else ())
    made = [] if reason else [f'ADD CONSTRAINT "k" {of}']
    assert statements_of(planned, table(ID)) == ['DROP COLUMN "t"', 'ADD COLUMN "t" text', *made]
    check_result(planned, table(ID, col(3, "t", "text")) if reason else after, {})


def test_foreign_key_goes_with_its_column() -> None:
    key = con(22, "to_other", "FOREIGN KEY (t) REFERENCES hr.other(t)")
    planned = plan_changes(record(table(ID, TEXT, key), table(ID)), table(ID, TEXT, key), VERSION)
    assert not planned.left_out
    assert statements_of(planned, table(ID)) == ['DROP CONSTRAINT "to_other"', 'DROP COLUMN "t"']
    check_result(planned, table(ID), {})


# ------------------------------------------------------------------ foreign keys

SAFE = {"k": ""}
OF = "FOREIGN KEY (id) REFERENCES hr.other(id)"
KEYS: dict[str, tuple[Structure, Structure, list[str]]] = {
    "added": (table(ID), table(ID, con(9, "k", OF)), [f'ADD CONSTRAINT "k" {OF}']),
    "added NOT VALID": (
        table(ID),
        table(ID, con(9, "k", f"{OF} NOT VALID")),
        [f'ADD CONSTRAINT "k" {OF} NOT VALID'],
    ),
    "validated": (table(ID, con(9, "k", f"{OF} NOT VALID")), table(ID, con(9, "k", OF)), ['VALIDATE CONSTRAINT "k"']),
    "dropped": (table(ID, con(9, "k", OF)), table(ID), ['DROP CONSTRAINT "k"']),
    "renamed": (table(ID, con(9, "j", OF)), table(ID, con(9, "k", OF)), ['RENAME CONSTRAINT "j" TO "k"']),
    "deferrable": (
        table(ID, con(9, "k", OF)),
        table(ID, con(9, "k", f"{OF} DEFERRABLE INITIALLY DEFERRED")),
        ['ALTER CONSTRAINT "k" DEFERRABLE INITIALLY DEFERRED'],
    ),
    "not deferrable": (
        table(ID, con(9, "k", f"{OF} ON DELETE CASCADE DEFERRABLE")),
        table(ID, con(9, "k", f"{OF} ON DELETE CASCADE")),
        ['ALTER CONSTRAINT "k" NOT DEFERRABLE'],
    ),
    "made anew": (
        table(ID, con(9, "k", OF)),
        table(ID, con(10, "k", f"{OF} ON DELETE CASCADE")),
        ['DROP CONSTRAINT "k"', f'ADD CONSTRAINT "k" {OF} ON DELETE CASCADE'],
    ),
    "enforced": (
        table(ID, con(9, "k", f"{OF} NOT ENFORCED")),
        table(ID, con(9, "k", OF)),
        ['DROP CONSTRAINT "k"', f'ADD CONSTRAINT "k" {OF}'],
    ),
    "to a key that is made with it": (
        table(ID),
        table(ID, con(9, "k", "FOREIGN KEY (id) REFERENCES hr.jobs(id)"), KEY, idx(30, "a", "id")),
        [
            'ADD CONSTRAINT "jobs_pkey" PRIMARY KEY (id)',
            "CREATE INDEX a ON hr.jobs USING btree (id)",
            'ADD CONSTRAINT "k" FOREIGN KEY (id) REFERENCES hr.jobs(id)',
        ],
    ),
    "to an index that is dropped with it": (
        table(ID, con(9, "k", "FOREIGN KEY (id) REFERENCES hr.jobs(id)"), BY_ID),
        table(ID),
        ['DROP CONSTRAINT "k"', 'DROP INDEX "by_id"'],
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_foreign_key_is_changed_as_other_constraints(name: str) -> None:
    before, after, statements = KEYS[name]
    planned = plan_changes(record(before, after), before, VERSION, SAFE)
    assert statements_of(planned, _renamed_key(before)) == statements
    assert not planned.left_out
    check_result(planned, after, {})
    with pytest.raises(DataError):
        check_result(planned, before, {})
    without_work(plan_changes(record(before, after), after, VERSION, {}))


def _renamed_key(before: Structure) -> Structure:
    """The table behind the first statements."""
    first = {"j": "k"}
    return table(
        *before.columns,
        *(con(each.number, first.get(each.name, each.name), each.definition) for each in before.constraints),
    )


@pytest.mark.parametrize("name", ["added", "added NOT VALID", "validated", "made anew", "enforced"])
def test_foreign_key_that_checks_rows_is_left_out_where_these_are_not_level(name: str) -> None:
    before, after, _ = KEYS[name]
    planned = plan_changes(record(before, after), before, VERSION, {"k": "hr.other is not level"})
    assert planned.refusal == 'constraint "k": hr.other is not level'


@pytest.mark.parametrize("name", ["renamed", "dropped", "deferrable", "not deferrable"])
def test_foreign_key_whose_rows_are_not_checked_is_changed_in_any_case(name: str) -> None:
    before, after, _ = KEYS[name]
    planned = plan_changes(record(before, after), before, VERSION, {"k": "hr.other is not level"})
    assert planned.has_work
    assert not planned.left_out
    check_result(planned, after, {})


def test_foreign_key_of_another_form_is_a_conflict_unless_it_is_left_out() -> None:
    here, change = table(ID, con(9, "k", f"{OF} ON DELETE CASCADE")), record(table(ID), table(ID, con(9, "k", OF)))
    with pytest.raises(DataError, match='constraint "k" is neither'):
        plan_changes(change, here, VERSION, SAFE)
    assert "not level" in plan_changes(change, here, VERSION, {"k": "hr.other is not level"}).refusal
    with pytest.raises(DataError, match='constraint "k" is neither'):
        plan_changes(record(table(ID, con(9, "k", OF)), table(ID)), here, VERSION, SAFE)


def test_foreign_key_with_functions_of_users_is_left_out_alone() -> None:
    after = table(ID, TEXT, con(9, "k", OF, calls=True))
    planned = plan_changes(record(table(ID), after), table(ID), VERSION, SAFE)
    assert "function" in "".join(planned.left_out)
    assert statements_of(planned, table(ID)) == ['ADD COLUMN "t" text']


NEW_NAMES = "FOREIGN KEY (id) REFERENCES hr.others(number)"  # since the record before: no record of this table tells


@pytest.mark.parametrize(
    ("before", "here", "after", "statements"),
    [
        (OF, NEW_NAMES, None, ['DROP CONSTRAINT "k"']),
        (f"{OF} NOT VALID", f"{NEW_NAMES} NOT VALID", NEW_NAMES, ['VALIDATE CONSTRAINT "k"']),
        (OF, NEW_NAMES, f"{NEW_NAMES} DEFERRABLE", ['ALTER CONSTRAINT "k" DEFERRABLE']),
        (OF, NEW_NAMES, NEW_NAMES, []),
    ],
    ids=["dropped", "validated", "deferrable", "nothing"],
)
def test_names_of_the_other_table_may_have_changed_since_the_last_record(before, here, after, statements) -> None:
    gone = [] if after is None else [con(9, "k", after)]
    change = record(table(ID, con(9, "k", before)), table(ID, *gone))
    planned = plan_changes(change, table(ID, con(9, "k", here)), VERSION, SAFE)
    assert statements_of(planned, table(ID, con(9, "k", here))) == statements


def test_renamed_table_that_has_its_former_name_here_leaves_the_key_as_it_is() -> None:
    key, renamed = con(9, "k", OF), con(9, "k", "FOREIGN KEY (id) REFERENCES hr.others(id)")
    planned = plan_changes(record(table(ID, key), table(ID, TEXT, renamed)), table(ID, key), VERSION, {"k": "unknown"})
    assert statements_of(planned, table(ID, key)) == ['ADD COLUMN "t" text']
    assert planned.left_out == ('constraint "k": unknown',)
    check_result(planned, table(ID, TEXT, key), {})


@pytest.mark.parametrize("keys", [SAFE, {"k": "hr.other is not level"}])
def test_foreign_key_follows_a_renamed_column_of_its_table(keys: dict[str, str]) -> None:
    before, after = table(ID, con(9, "k", OF)), table(col(1, "n"), con(9, "k", OF.replace("(id) REF", "(n) REF")))
    planned = plan_changes(record(before, after), before, VERSION, keys)
    assert statements_of(planned, after) == ['RENAME COLUMN "id" TO "n"']
    assert not planned.left_out
    check_result(planned, after, {})


@pytest.mark.parametrize(
    ("definition", "table_name", "referred", "rest"),
    [
        (OF, ("hr", "other"), ("id",), ("", "", "")),
        (
            'FOREIGN KEY (a, "B c") REFERENCES "H""r"."o.t(x)"("ID", "a "" (b)") MATCH FULL ON UPDATE CASCADE'
            ' ON DELETE SET NULL ("x DEFERRABLE") DEFERRABLE INITIALLY DEFERRED NOT VALID',
            ('H"r', "o.t(x)"),
            ("ID", 'a " (b)'),
            (
                ' MATCH FULL ON UPDATE CASCADE ON DELETE SET NULL ("x DEFERRABLE")',
                " DEFERRABLE INITIALLY DEFERRED",
                " NOT VALID",
            ),
        ),
        (
            "FOREIGN KEY (a, PERIOD b) REFERENCES hr.other(a, PERIOD b) NOT ENFORCED",
            ("hr", "other"),
            ("a", "b"),
            ("", "", " NOT ENFORCED"),
        ),
    ],
)
def test_text_of_a_foreign_key_is_read(definition, table_name, referred, rest) -> None:
    found = key_text(con(9, "k", definition))
    assert found is not None
    assert (found.table, found.referred_columns) == (table_name, referred)
    assert (found.actions, found.deferral, found.checks) == rest


def test_text_without_a_schema_is_not_read() -> None:
    assert key_text(con(9, "k", "FOREIGN KEY (id) REFERENCES other(id)")) is None


@pytest.mark.parametrize(
    ("query", "is_beside"),
    [
        ("create index concurrently if not exists i on t (a)", True),
        ("/* now */ CREATE -- yes\n INDEX CONCURRENTLY ON t (a)", True),
        ("/* /* */ CREATE INDEX CONCURRENTLY */ CREATE INDEX i ON t (a)", False),
        ("/* /* */ CREATE */ CREATE INDEX CONCURRENTLY i ON t (a)", True),
        ('CREATE INDEX i ON t ("concurrently")', False),
        ("CREATE INDEX i ON t (a) /* not CONCURRENTLY */", False),
        ("SELECT 'CREATE INDEX CONCURRENTLY i ON t (a)'; CREATE INDEX i ON t (a)", False),
    ],
)
def test_concurrent_statement_is_known_by_its_words(query: str, is_beside: bool) -> None:
    change = record(table(ID), table(ID, BY_ID), tag="CREATE INDEX", query=query)
    planned = plan_changes(change, table(ID), VERSION)
    assert planned.beside == (BY_ID if is_beside else None)
    assert planned.has_work != is_beside
    assert not planned.refusal


CONCURRENT = {"tag": "CREATE INDEX", "query": "CREATE INDEX CONCURRENTLY by_id ON hr.jobs (id)"}


def test_index_is_made_beside_the_rest_only_where_it_is_all_that_is_to_be_done() -> None:
    """What the source changed before, and nobody recorded, comes with it."""
    change = record(table(ID), table(ID, TEXT, BY_ID), **CONCURRENT)
    planned = plan_changes(change, table(ID), VERSION)
    assert planned.beside is None
    assert len(statements_of(planned, table(ID))) == 2


def test_unique_index_is_made_at_its_place() -> None:
    unique = IndexPart(number=30, name="by_id", definition=BY_ID.definition.replace("INDEX", "UNIQUE INDEX", 1))
    query = "CREATE UNIQUE INDEX CONCURRENTLY by_id ON hr.jobs (id)"
    planned = plan_changes(record(table(ID), table(ID, unique), tag="CREATE INDEX", query=query), table(ID), VERSION)
    assert planned.beside is None
    assert statements_of(planned, table(ID)) == [unique.definition]


@pytest.mark.parametrize("here", [table(ID), table(ID, BY_ID)])
def test_unique_index_that_comes_along_is_made_at_its_place(here: Structure) -> None:
    """It failed at the source, and REINDEX repaired it, which nobody recorded."""
    unique = IndexPart(number=31, name="u", definition="CREATE UNIQUE INDEX u ON hr.jobs USING btree (id)")
    planned = plan_changes(record(table(ID), table(ID, BY_ID, unique), **CONCURRENT), here, VERSION)
    assert planned.beside is None
    assert unique.definition in statements_of(planned, here)


def test_index_that_is_there_is_not_made_beside_the_rest() -> None:
    change = record(table(ID), table(ID, BY_ID), **CONCURRENT)
    without_work(plan_changes(change, change.after, VERSION))
    assert plan_changes(change, change.after, VERSION).beside is None
    with pytest.raises(DataError, match="neither as before"):
        plan_changes(change, table(ID, idx(30, "by_id", "id DESC")), VERSION)


def test_index_with_a_function_of_users_is_refused_however_it_is_made() -> None:
    change = record(table(ID), table(ID, idx(9, "i", "hr.f(id)", calls=True)), **CONCURRENT)
    planned = plan_changes(change, table(ID), VERSION)
    assert ("function" in planned.refusal, planned.beside) == (True, None)


# ------------------------------------------------------------------ names


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_quoted(name: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    before = table(ID, con(9, name, "CHECK (true)"), owner=name, name=name)
    after = table(col(1, name), col(2, f"{name}2"), owner=name, name=name)
    planned = plan_changes(record(before, after), before, VERSION)
    assert [*planned.statements, *planned.last_statements(after)] == [
        f"ALTER TABLE ONLY {quoted}.{quoted} DROP CONSTRAINT {quoted}",
        f'ALTER TABLE ONLY {quoted}.{quoted} RENAME COLUMN "id" TO {quoted}',
        f'ALTER TABLE ONLY {quoted}.{quoted} ADD COLUMN {quoted[:-1]}2" integer',
    ]


# ------------------------------------------------------------------ renames of any kind


@pytest.mark.seeded
@given(st.data())
def test_renames_in_any_pattern_end_with_the_wanted_names(data: st.DataObject) -> None:
    """Columns, constraints and indexes exchange names at random; no statement meets a name that is taken."""
    pool = ["a", "b", "c", "headrace_0"]
    pool.append(data.draw(names().filter(lambda name: name not in pool)))  # one table has no name twice

    def drawn(count: int) -> list[str]:
        return data.draw(st.permutations(pool))[:count]

    old, new = drawn(3), drawn(3)
    columns = ([col(n, name, f"t{n}") for n, name in enumerate(names_)] for names_ in (old, new))
    # constraints and indexes have one set of names
    old_own, new_own = drawn(4), drawn(4)
    own = (
        [
            con(10, given_[0], "CHECK (a)"),
            con(11, given_[1], "CHECK (b)"),
            idx(12, given_[2], "x"),
            idx(13, given_[3], "y"),
        ]
        for given_ in (old_own, new_own)
    )
    before, after = (table(*parts, *others) for parts, others in zip(columns, own, strict=True))
    planned = plan_changes(record(before, after), before, VERSION)
    taken = {"column": dict(zip(old, range(3), strict=True)), "": dict(zip(old_own, range(10, 14), strict=True))}
    for statement in planned.statements:
        first, second = _renamed(statement)
        there = taken["column" if "RENAME COLUMN" in statement else ""]
        assert second not in there
        there[second] = there.pop(first)
    assert taken == {
        "column": dict(zip(new, range(3), strict=True)),
        "": dict(zip(new_own, range(10, 14), strict=True)),
    }


def _renamed(statement: str) -> tuple[str, str]:
    """Return the old and the new name of a statement that renames."""
    if statement.startswith("ALTER INDEX "):
        old, new = statement.removeprefix('ALTER INDEX "hr".').split(" RENAME TO ")
    else:
        old, new = statement.split(" RENAME ")[1].split(" ", 1)[1].split(" TO ")
    return _unquoted(old), _unquoted(new)


def _unquoted(name: str) -> str:
    return name[1:-1].replace('""', '"')
