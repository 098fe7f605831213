"""Custom transformations: the LCRs that functions get, their permitted results, and reports of failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from headrace.databases.connectors import value_types
from headrace.lcr.batch import Column, Command, LcrBatch, OldImage, TableVersion, content_version
from headrace.lcr.building import batch_of_values
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.values import ABSENT, NULL, UNCHANGED
from headrace.rules.conditions.condition import parse
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import ANY_TAG, Rule, RuleSet
from headrace.rules.transformations.custom import LCRS_MAX, CustomTransformation
from headrace.rules.transformations.transformation import AddColumn, DeleteColumns, Transformation, TransformationError
from tests.support.apply.custom_functions import custom
from tests.support.session.seeds import scaled
from tests.support.values.lcr_batches import assert_same_batch, lcr_batches

USERS = TableVersion(
    object_number=7,
    version=7,
    owner="hr",
    name="users",
    old_image=OldImage.FULL,
    columns=(
        Column(name="id", type_name="pg_catalog.int4", type_number=23, is_key=True),
        Column(name="email", type_name="pg_catalog.text", type_number=25),
        Column(name="note", type_name="pg_catalog.text", type_number=25),
    ),
)
MASK = """
def mask(lcr):
    for image in ("old", "new"):
        value = lcr.get_value(image, "email", use_old=False)
        if value is not None and not value.is_null:
            lcr.set_value(image, "email", "x" + value.decoded[-3:])
    return lcr
"""


def evaluation(function: CustomTransformation, *operations, owner: str = "hr") -> RuleEvaluation:
    rules = (
        Rule(
            owner=owner,
            name="users",
            tags=ANY_TAG,
            transformation=Transformation(operations=operations, custom=function),
        ),
        Rule(owner="pub", tags=ANY_TAG),
    )
    return RuleEvaluation(RuleSet(include=rules), types=value_types())


def insert(*emails: bytes | int) -> LcrBatch:
    rows = [[str(place).encode(), email, b"n"] for place, email in enumerate(emails)]
    return batch_of_values(USERS, Command.INSERT, new=rows, source="dbs1", transaction_id=77, commit_scn=1000)


def values(batch: LcrBatch) -> list[tuple[str, list[bytes | int], list[bytes | int]]]:
    from headrace.lcr.row_lcr import ValueType

    lcrs = [RowLcr(batch, row) for row in range(batch.row_count)]
    return [(lcr.command_type, lcr.stored(ValueType.OLD), lcr.stored(ValueType.NEW)) for lcr in lcrs]


def refused(text: str, batch: LcrBatch | None = None, **more) -> TransformationError:
    with pytest.raises(TransformationError) as caught:
        evaluation(custom(text, **more)).filter(batch or insert(b"ann@a.de"))
    return caught.value


# --------------------------------------------------------------------------- permitted results


def test_function_changes_values_of_both_images_and_keeps_nulls() -> None:
    update = batch_of_values(
        USERS,
        Command.UPDATE,
        old=[[b"1", b"ann@a.de", b"n"], [b"2", NULL, b"n"]],
        new=[[b"1", b"bob@a.it", UNCHANGED], [b"2", NULL, b"m"]],
        source="dbs1",
    )
    found = values(evaluation(custom(MASK)).filter(update))
    assert found == [
        ("UPDATE", [b"1", b"x.de", b"n"], [b"1", b"x.it", UNCHANGED]),
        ("UPDATE", [b"2", NULL, b"n"], [b"2", NULL, b"m"]),
    ]
    delete = batch_of_values(USERS, Command.DELETE, old=[[b"1", b"ann@a.de", ABSENT]], source="dbs1")
    assert values(evaluation(custom(MASK)).filter(delete)) == [("DELETE", [b"1", b"x.de", ABSENT], [ABSENT] * 3)]


def test_functions_run_after_declarative_transformations() -> None:
    text = """
def mask(lcr):
    assert set(lcr.get_values("new")) == {"region", "id", "email"}, lcr.get_values("new")
    lcr.set_value("new", "region", lcr.get_value("new", "region").decoded.lower())
    return lcr
"""
    rules = evaluation(
        custom(text),
        DeleteColumns(deleted=("note",)),
        AddColumn(name="region", type_name="pg_catalog.text", value="EMEA"),
    )
    after = rules.filter(insert(b"ann"))
    assert [column.name for column in after.tables[0].columns] == ["region", "id", "email"]
    assert values(after)[0][2] == [b"emea", b"0", b"ann"]


def test_functions_run_after_row_migration() -> None:
    """A row that migrates in is an INSERT for the function, one that migrates out a DELETE. The subset condition is not
    evaluated again on the function's result.
    """
    text = """
def mask(lcr):
    image = "old" if lcr.command_type == "DELETE" else "new"
    note = lcr.get_value(image, "note").decoded
    lcr.set_value(image, "note", f"{lcr.command_type} of {note}: {sorted(lcr.get_values('old'))}")
    lcr.set_value(image, "email", "away")
    return lcr
"""
    transformation = Transformation(
        operations=(AddColumn(name="region", type_name="pg_catalog.text", value="x"),), custom=custom(text)
    )
    rule = Rule(
        owner="hr", name="users", tags=ANY_TAG, subset=parse("email = 'here'", "subset"), transformation=transformation
    )
    moved = [(b"here", b"there"), (b"there", b"here"), (b"here", b"here"), (b"there", b"there")]
    olds, news = (
        [[b"%d" % (row + place), email[place], b"%d" % place] for row, email in enumerate(moved)] for place in (0, 1)
    )
    found = RuleEvaluation(RuleSet(include=(rule,)), types=value_types()).filter(
        batch_of_values(USERS, Command.UPDATE, old=olds, new=news, source="dbs1")
    )
    lcrs = [RowLcr(found, row) for row in range(found.row_count)]
    assert [
        (lcr.command_type, lcr.get_value("old" if lcr.command_type == "DELETE" else "new", "note").raw) for lcr in lcrs
    ] == [
        ("DELETE", b"DELETE of 0: ['email', 'id', 'note', 'region']"),
        ("INSERT", b"INSERT of 1: []"),
        ("UPDATE", b"UPDATE of 1: ['email', 'id', 'note', 'region']"),
    ]
    assert [lcr.get_value("new", "email").raw for lcr in lcrs[1:]] == [b"away", b"away"]


def test_function_gets_only_rows_of_its_tables() -> None:
    other = replace(USERS, owner="pub", object_number=8)
    batch = insert(b"a", b"b")
    batch = replace(batch, tables=(other,))
    assert evaluation(custom("def mask(lcr):\n    raise ValueError\n")).filter(batch) is batch


@pytest.mark.seeded
@settings(max_examples=scaled(24, 500), deadline=None)
@given(batch=lcr_batches())
def test_function_that_changes_nothing_leaves_every_batch_unchanged(batch: LcrBatch) -> None:
    # A partition's bounds refer to columns that a function might change.
    tables = [
        table if table.partition is None else replace(table, partition=replace(table.partition, rows=""))
        for table in batch.tables
    ]
    batch = replace(batch, tables=tuple(replace(table, version=content_version(table)) for table in tables))
    rule = Rule(tags=ANY_TAG, transformation=Transformation(custom=custom("def mask(lcr):\n    return lcr\n")))
    after = RuleEvaluation(RuleSet(include=(rule,)), types=value_types()).filter(batch)
    used = {group.table for group in batch.groups} | {table for each in batch.truncates for table in each.tables}
    if (
        used == set(range(len(batch.tables)))
        and len(set(batch.tables)) == len(batch.tables)
        and all(group.row_count for group in batch.groups)
    ):
        assert_same_batch(after, batch)
    assert (after.row_count, after.through_scn) == (batch.row_count, batch.through_scn)


@pytest.mark.seeded
@settings(max_examples=scaled(24, 500), deadline=None)
@given(batch=lcr_batches())
def test_capture_function_can_return_any_number_of_lcrs_in_order(batch: LcrBatch) -> None:
    """The row's position in its transaction decides the number of copies, so that all numbers meet each other."""
    text = "def mask(lcr):\n    return [lcr.copy() for _ in range(lcr.position % 3)]\n"
    rule = Rule(tags=ANY_TAG, transformation=Transformation(custom=custom(text, is_at_capture=True)))
    after = RuleEvaluation(RuleSet(include=(rule,)), types=value_types()).filter(batch)

    def shown(found: LcrBatch, row: int):
        lcr = RowLcr(found, row)
        return (
            lcr.transaction_id,
            lcr.command_type,
            {k: v.raw for k, v in lcr.get_values("old").items()},
            {k: v.raw for k, v in lcr.get_values("new").items()},
        )

    wanted = []
    for row in range(batch.row_count):
        lcr = RowLcr(batch, row)
        wanted += [shown(batch, row)] * (1 if lcr.command_type == "TRUNCATE" else lcr.position % 3)
    assert [shown(after, row) for row in range(after.row_count)] == wanted
    assert (after.previous_scn, after.through_scn, after.is_open) == (
        batch.previous_scn,
        batch.through_scn,
        batch.is_open,
    )


def test_changes_to_one_copy_do_not_affect_other_copies() -> None:
    text = """
def mask(lcr):
    other = lcr.copy()
    other.set_value("new", "id", 100 + lcr.get_value("new", "id").decoded)
    return [lcr, other]
"""
    after = evaluation(custom(text, is_at_capture=True)).filter(insert(b"a", b"b"))
    assert [new[0] for _, _, new in values(after)] == [b"0", b"100", b"1", b"101"]


# --------------------------------------------------------------------------- forbidden results


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("return None", "returned nothing"),
        ("return 5", "returned a int, and not the LCR"),
        ("return [lcr, 5]", "returned a list"),
        ("return [lcr]", "only a capture process's function may"),
        ("return []", "only a capture process's function may"),
        ("lcr.tag = b'1'\n    return lcr", "changed the tag"),
        ("lcr.object_name = 'other'\n    return lcr", "made INSERT of hr.other of it"),
        ("lcr.command_type = 'DELETE'\n    return lcr", "made DELETE of hr.users of it"),
        ("lcr.delete_column('note', 'new')\n    return lcr", "gave it other columns"),
        ("lcr.add_column('new', 'more', b'1')\n    return lcr", "gave it other columns"),
        ("lcr.rename_column('note', 'n', 'new')\n    return lcr", "gave it other columns"),
        ("global kept\n    kept = globals().get('kept', lcr)\n    return kept", ""),
        ("lcr.execute(True)\n    return lcr", "handlers/own.py, line 2, in mask"),
        ("lcr.set_value('new', 'id', None)\n    return lcr", "the value for column id is no value"),
        ("raise SystemExit", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("lcr.set_value('new', 'email', b'1')\n    return lcr", "changed email, which is not among its columns"),
    ],
)
def test_forbidden_function_result_raises_an_error_with_function_and_lcr(body: str, problem: str) -> None:
    function = custom(f"def mask(lcr):\n    {body}\n", columns=("note", "id"))
    rules = evaluation(function)
    with pytest.raises(TransformationError) as caught:
        rules.filter(insert(b"ann@a.de", b"bob@a.de"))
    message = str(caught.value)
    assert problem in message
    assert "own:mask" in message
    assert "INSERT of hr.users, number " in message
    assert "of transaction 77 of dbs1, SCN " in message
    assert "ann@a.de" not in message  # a failing mask must not reveal the value that it hides
    assert caught.value.hint


def test_function_can_set_null() -> None:
    text = "def mask(lcr):\n    lcr.set_value('new', 'email', lcr.NULL)\n    return lcr\n"
    assert [new for _, _, new in values(evaluation(custom(text)).filter(insert(b"ann@a.de")))] == [[b"0", NULL, b"n"]]


def test_missing_values_stay_missing() -> None:
    update = batch_of_values(
        USERS, Command.UPDATE, old=[[b"1", ABSENT, ABSENT]], new=[[b"1", b"a", UNCHANGED]], source="dbs1"
    )
    assert "added the new value of note" in str(
        refused("def mask(lcr):\n    lcr.add_column('new', 'note', b'x')\n    return lcr\n", update)
    )
    error = refused("def mask(lcr):\n    lcr.set_value('new', 'note', b'x')\n    return lcr\n", update)
    assert "no new value of column note: the UPDATE left it alone, and it is stored out of line" in str(error)
    whole = batch_of_values(USERS, Command.UPDATE, old=[[b"1", b"a", b"n"]], new=[[b"1", b"a", b"n"]], source="dbs1")
    assert "deleted the new value of email" in str(
        refused("def mask(lcr):\n    lcr.delete_column('email', 'new')\n    return lcr\n", whole)
    )


def test_returned_lcrs_keep_the_source_transaction_and_scn() -> None:
    after = evaluation(custom("def mask(lcr):\n    lcr.source_database_name = 'elsewhere'\n    return lcr\n")).filter(
        insert(b"a")
    )
    assert after.source == "dbs1"
    for name in ("transaction_id", "scn", "commit_scn"):
        assert "AttributeError" in str(refused(f"def mask(lcr):\n    lcr.{name} = 5\n    return lcr\n"))


def test_hanging_function_is_interrupted_and_its_line_is_named() -> None:
    error = refused("import time\n\ndef mask(lcr):\n    while True:\n        time.sleep(0.01)\n", timeout_s=0.2)
    assert "own:mask" in str(error)
    assert "did not end within 0.2 s" in str(error)
    assert "handlers/own.py, line" in str(error)


def test_too_many_returned_lcrs_are_refused() -> None:
    assert f"returned {LCRS_MAX + 1} LCRs for one" in str(
        refused(f"def mask(lcr):\n    return [lcr] * {LCRS_MAX + 1}\n", is_at_capture=True)
    )


def test_unloadable_code_stops_the_client_at_its_first_row() -> None:
    rules = evaluation(custom("x = 1\n"))
    progress = replace(insert(b"a"), tables=(replace(USERS, owner="pub"),))
    assert rules.filter(progress) is progress
    with pytest.raises(TransformationError, match=r"own\.py has no function mask"):
        rules.filter(insert(b"a"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("int(lcr.get_value('new', 'email').decoded)", "ValueError (its message is not shown"),
        ("{}[lcr.get_value('new', 'email').decoded]", "KeyError (its message is not shown"),
        ("raise ValueError(f\"not {lcr.get_value('new', 'email').decoded}\")", "ValueError (its message is not shown"),
        ("raise ValueError(lcr.get_value('new', 'email').decoded.upper())", "ValueError (its message is not shown"),
        ("import sys; sys.exit(lcr.get_value('new', 'email').decoded)", "SystemExit (its message is not shown"),
        ("raise ValueError('no address')", "ValueError: no address"),
        ("lcr.get_value('new', 'nowhere').decoded", "AttributeError: 'NoneType' object has no attribute 'decoded'"),
        ("assert False", "AssertionError"),
    ],
)
def test_function_error_does_not_reveal_the_value_to_hide(body: str, told: str) -> None:
    with pytest.raises(TransformationError) as caught:
        evaluation(custom(f"def mask(lcr):\n    {body}\n    return lcr\n")).filter(insert(b"ada@example.org"))
    assert told in caught.value.message
    assert "own.py, line 2, in mask" in caught.value.message
    assert "ada" not in f"{caught.value.message} {caught.value.hint} {caught.value.context}".lower()
