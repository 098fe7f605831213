"""Rows that handlers change, move, cut or discard, between unhandled rows: groups equal one-by-one application."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.base.errors import DataError
from headrace.lcr.batch import OldImage
from headrace.rules.conflict_handlers import ConflictHandler
from headrace.rules.user_code.handlers import DmlHandler, HandlerRules
from headrace.rules.user_code.source import UserFunction
from spark_apply.handlers.groups import write_group
from spark_apply.server import set_groups
from spark_apply.sets.conflicts import execute_steps
from tests.support.apply.handlers import Handled, code_of, row
from tests.support.histories.conflicts import Lcr, Shown
from tests.support.histories.conflicts import handler as conflict_handler
from tests.support.session.seeds import scaled

# The row's text `b` chooses its treatment: from the new values, else from the old ones.
CODE = code_of("""
def run(lcr, session):
    image = "old" if lcr.command_type == "DELETE" else "new"
    value = lcr.get_value(image, "b")
    wish = value.decoded if value is not None else "keep"
    if wish == "leave out":
        return
    if wish == "twice" and lcr.command_type == "UPDATE":
        lcr.execute(True)
        for column in ("id", "a", "b", "t", "n", "u"):
            lcr.set_value("old", column, lcr.get_value("new", column).decoded)
        lcr.set_value("new", "a", "second")
    if wish == "other value" and image == "new":
        lcr.set_value("new", "a", "by handler")
    if wish == "cut" and lcr.command_type == "UPDATE":
        for column in ("b", "t", "n", "u"):
            lcr.delete_column(column, "*")
    if wish == "other key" and image == "new":
        lcr.set_value("new", "id", lcr.get_value("new", "id").decoded + 10)
    if wish == "delete instead" and lcr.command_type == "UPDATE":
        lcr.command_type = "DELETE"
        lcr.delete_column("a", "new")
    lcr.execute(True)
""")
WISHES = ("keep", "keep", "keep", "leave out", "twice", "other value", "cut", "other key", "delete instead")
FUNCTION = UserFunction(name="own:run", version=CODE.version_of("own:run"))
KEYS = range(1, 5)


@st.composite
def histories(draw: st.DrawFn) -> list[list[tuple[str, Lcr]]]:
    """Transactions of a source whose tables `c` and `d` begin with rows 1 and 2."""
    tables: dict[str, dict[int, Shown]] = {name: {key: row(key) for key in (1, 2)} for name in ("c", "d")}
    found: list[list[tuple[str, Lcr]]] = []
    for number in range(draw(st.integers(1, 6))):
        made: list[tuple[str, Lcr]] = []
        for place in range(draw(st.integers(1, 6))):
            name = draw(st.sampled_from(["c", "c", "c", "d"]))
            rows, key = tables[name], draw(st.sampled_from(KEYS))
            old, text = rows.get(key), f"{number}.{place}"
            new: Shown | None = (key, text, draw(st.sampled_from(WISHES)), number, place, text)
            if old is not None and draw(st.integers(0, 3)) == 0:
                new = None
            elif (
                old is not None and draw(st.integers(0, 3)) == 0 and (other := draw(st.sampled_from(KEYS))) not in rows
            ):
                assert new is not None
                new = (other, *new[1:])
            if old is not None:
                del rows[key]
            if new is not None:
                rows[int(str(new[0]))] = new
            made.append((name, Lcr(old=old, new=new)))
        found.append(made)
    return found


def outcome(
    found: list[list[tuple[str, Lcr]]], operations: tuple[str, ...], conflicts: tuple[ConflictHandler, ...]
) -> tuple[Any, ...]:
    """Return the rows and error transactions after a history is applied as one group."""
    rules = HandlerRules(
        code=CODE, dml=(DmlHandler(owner="public", name="c", operations=operations, function=FUNCTION),)
    )
    at = Handled(rules, rows=[row(1), row(2)], others=[row(1), row(2)], conflicts=conflicts)
    at.apply(*found)
    return at.rows("c"), at.rows("d"), [(error.commit_scn, error.conflict_type) for error in at.errors()]


def row_by_row(patch: pytest.MonkeyPatch) -> None:
    """Make every joint write of rows fail, so that each transaction is applied alone."""

    def refused(name: str, works: Callable[..., Any], has_rows: Callable[..., bool]) -> None:
        def instead(*arguments: Any) -> Any:
            if has_rows(*arguments):
                raise DataError("one by one", sqlstate="")
            return works(*arguments)

        patch.setattr(set_groups, name, instead)

    refused(
        "write_group",
        write_group,
        lambda session, plan, *_: bool(plan.first) or any(batch.row_count for batch in plan.rest),
    )
    refused("execute_steps", execute_steps, lambda session, steps: bool(steps))


@pytest.mark.long
@pytest.mark.seeded
@settings(max_examples=scaled(30, 700), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    found=histories(),
    operations=st.sampled_from(
        [("insert", "update", "delete"), ("update",), ("insert", "delete"), ("update", "delete")]
    ),
    resolves=st.booleans(),
)
def test_groups_of_handled_rows_equal_one_by_one_application(
    found: list[list[tuple[str, Lcr]]],
    operations: tuple[str, ...],
    resolves: bool,
) -> None:
    conflicts = (conflict_handler("overwrite", "a", "b", "t", "n", "u"),) if resolves else ()
    with pytest.MonkeyPatch.context() as patch:
        row_by_row(patch)
        expected = outcome(found, operations, conflicts)
    assert outcome(found, operations, conflicts) == expected


@pytest.mark.long
@pytest.mark.seeded
@settings(max_examples=scaled(30, 700), deadline=None)
@given(
    found=histories(),
    left_out=st.lists(st.booleans(), min_size=36, max_size=36),
    image=st.sampled_from([OldImage.FULL, OldImage.KEY]),
    resolves=st.booleans(),
)
def test_groups_of_histories_with_gaps_equal_one_by_one_application(
    found: list[list[tuple[str, Lcr]]],
    left_out: list[bool],
    image: OldImage,
    resolves: bool,
) -> None:
    """Conditions pass single changes: the remaining history meets conflicts of every kind."""
    rest = iter(left_out)
    cut = [[each for each in transaction if not next(rest)] for transaction in found]
    cut = [transaction for transaction in cut if transaction] or [[("c", Lcr(old=row(1)))]]
    conflicts = (conflict_handler("overwrite", "a", "b", "t", "n", "u"),) if resolves else ()

    def left() -> tuple[Any, ...]:
        at = Handled(HandlerRules(), rows=[row(1), row(2)], others=[row(1), row(2)], conflicts=conflicts)
        at.versions = {name: replace(version, old_image=image) for name, version in at.versions.items()}
        at.apply(*cut)
        return at.rows("c"), at.rows("d"), [(error.commit_scn, error.conflict_type) for error in at.errors()]

    with pytest.MonkeyPatch.context() as patch:
        row_by_row(patch)
        expected = left()
    assert left() == expected
