"""Rows that custom transformations change are copied and compared in the form in which their changes arrive."""

from __future__ import annotations

import pytest

from headrace.databases.connectors import value_types
from headrace.databases.memory.copying import unpacked
from headrace.databases.memory.store import destination_column
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.transformations.transformation import (
    CURRENT_TIMESTAMP,
    AddColumn,
    DeleteColumns,
    RenameColumn,
    Transformation,
)
from headrace.rules.user_code.source import UserFunction
from spark_apply.copy.pieces.reshaped import ReshapedPiece, ReshapedTable
from tests.support.apply.handlers import code_of
from tests.support.copies.table_copies import World

MASK = """
def mask(lcr):
    lcr.set_value("new", "v", "x" + lcr.get_value("new", "v").decoded[-1:])
    return lcr

def odd_twice(lcr):
    return [lcr, lcr] if int(lcr.get_value("new", "v").decoded) % 2 else []

number = 0

def changing(lcr):
    global number
    number += 1
    lcr.set_value("new", "v", str(number))
    return lcr

def seen(lcr):
    arrived = lcr.get_value("new", "arrived").decoded
    lcr.set_value("new", "v", arrived.isoformat())
    lcr.set_value("new", "changed", arrived.replace(year=2000))
    return lcr

def failing(lcr):
    if lcr.get_value("new", "v").decoded == "7":
        raise ValueError("seven")
    return lcr
"""


def through(name: str, *operations) -> Transformation:
    code = code_of(MASK)
    function = UserFunction(name=f"own:{name}", version=code.version_of("own:mask"))
    return Transformation(
        operations=operations, custom=CustomTransformation(function=function, code=code, is_at_capture=True)
    )


def copied(*transformations: Transformation, columns: tuple[str, ...] = ("id", "v")) -> World:
    world = World("t")
    world.transformations = transformations
    del world.store.tables["public", "t"]
    world.store.create_table("public", "t", [destination_column(column) for column in columns], key=columns[:1])
    return world


def test_masked_table_is_copied_masked() -> None:
    world = copied(through("mask"))
    world.copying().run_first()
    assert world.states[-1] == ("t", "DONE")
    assert sorted(world.store.rows("public", "t")) == sorted((str(n).encode(), b"x%d" % (n % 10)) for n in range(20))


def test_functions_and_steps_of_several_clients_run_in_their_order() -> None:
    first = through("mask", AddColumn(name="region", type_name="pg_catalog.text", value="EMEA"))
    second = Transformation(operations=(RenameColumn(before="v", after="masked"), DeleteColumns(deleted=("none",))))
    world = copied(first, second, columns=("id", "masked", "region"))
    world.copying().run_first()
    assert world.states[-1] == ("t", "DONE")
    assert sorted(world.store.rows("public", "t"))[:2] == [(b"0", b"x0", b"EMEA"), (b"1", b"x1", b"EMEA")]


def test_time_added_by_a_transformation_is_text_in_copied_rows() -> None:
    world = World("t")
    added = (AddColumn(name=name, type_name=CURRENT_TIMESTAMP, is_now=True) for name in ("arrived", "changed"))
    table = ReshapedTable(
        source="dbs1",
        owner="public",
        name="t",
        columns=world.source.table("public.t").version.columns,
        transformations=(through("seen", *added),),
        time_us=1_772_000_000_000_001,
    )
    with world.reader("source").open_piece(world.reader("source").plan("public", "t", {}).pieces[0]) as opened:
        rows = {
            row
            for block in ReshapedPiece(opened, table, value_types()).rows(["v", "arrived", "changed"])
            for row in unpacked(block)
        }
    assert rows == {
        (b"2026-02-25T06:13:20.000001+00:00", b"2026-02-25 06:13:20.000001+00", b"2000-02-25 06:13:20.000001+00:00")
    }


def test_copy_contains_all_rows_that_a_capture_function_makes() -> None:
    table = ReshapedTable(
        source="dbs1",
        owner="public",
        name="t",
        columns=World("t").source.table("public.t").version.columns,
        transformations=(through("odd_twice"),),
    )
    assert ReshapedTable.from_bytes(table.to_bytes()) == table
    world = World("t")
    reader = world.reader("source")
    rows, digests = [], []
    for piece in reader.plan("public", "t", {}).pieces:
        with reader.open_piece(piece) as opened:
            made = ReshapedPiece(opened, table, value_types())
            rows += [row for block in made.rows(["id", "v"]) for row in unpacked(block)]
            digests.append(made.digest(["id", "v"]).row_count)
    assert sorted(rows) == sorted([(str(n).encode(),) * 2 for n in range(1, 20, 2) for _ in range(2)])
    assert sum(digests) == 20


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("changing", "the copy differs"),
        ("failing", "own:failing"),
    ],
)
def test_failing_or_nondeterministic_function_completes_no_copy(name: str, problem: str) -> None:
    world = copied(through(name))
    world.should_end = lambda: ("t", "FAILED") in world.states
    world.copying().run_first()
    found = world.recorded()["t"]
    assert found.state == "FAILED"
    assert problem in found.problem
