"""Order and virtual dependency definitions in a topology file: reading, refusals, plan and table checks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.databases.dependency_columns import dependency_column_findings
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.batch import OldImage, TableVersion
from headrace.lcr.table_name import TableName
from headrace.rules.virtual_dependencies import ObjectDependency, ValueColumns, ValueDependency, VirtualDependencies
from tests.support.topologies.files import SITES, problems
from tests.support.values.writes import version_of
from topology.edits.stored import spec_from_json, spec_to_json
from topology.file.reading import read_topology
from topology.plan import make_plan

EXAMPLE = Path(__file__).parents[4] / "examples" / "order.yaml"
APPLY = (
    SITES
    + """
queues: {q: {site: dbs2}, q1: {site: dbs1}}
captures: {c: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: shop}]}}}
propagations: {p: {from: q1, to: q}}
applies:
  a: {site: dbs2, source: dbs1, queue: q, %s}
"""
)
BOTH = (
    "value_dependencies: {n: [{table: shop.orders, columns: [number]}, {table: shop.payments, columns:"
    " [order_number]}]}"
)
DEFINITIONS = VirtualDependencies(
    values=(
        ValueDependency(
            name="n",
            tables=(
                ValueColumns(owner="shop", name="orders", columns=("number",)),
                ValueColumns(owner="shop", name="payments", columns=("order_number",)),
            ),
        ),
    )
)


def test_example_is_read_and_its_plan_shows_the_dependencies():
    spec = read_topology(EXAMPLE)
    at_dbs2, at_audit = spec.apply("apply_at_dbs2"), spec.apply("apply_at_audit")
    (value,) = at_dbs2.dependencies.values
    assert [(each.owner, each.name, each.columns) for each in value.tables] == [
        ("shop", "orders", ("number",)),
        ("shop", "payments", ("order_number",)),
    ]
    assert at_dbs2.dependencies.objects == (
        ObjectDependency(owner="shop", name="payments", parent_owner="shop", parent_name="customers"),
    )
    assert at_dbs2.dependencies.columns("shop", "payments") == ("order_number",)
    assert (at_dbs2.commits_in_order, at_audit.commits_in_order, at_audit.dependencies) == (
        False,
        True,
        VirtualDependencies(),
    )
    assert spec_from_json(spec_to_json(spec)).applies == spec.applies
    plan = make_plan(spec)
    works = {actor.name: actor.work for actor in plan.actors}
    assert (
        "order_number): shop.orders (number), shop.payments (order_number); shop.payments waits for shop.customers"
        in works["apply:apply_at_dbs2"]
    )
    assert "commits in the order of the source" in works["apply:apply_at_audit"]
    parallel = {each.name: each for each in plan.optimisations if "in parallel" in each.name}
    assert [each.applies for each in parallel.values()] == [True, False]
    assert "commit_serialization is full" in parallel["apply_at_audit: independent groups in parallel"].reason


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "value_dependencies: {n: [{table: shop.a, columns: [x]}, {table: shop.b, columns: [x, y]}]}",
            "different numbers of columns: shop.a has 1, shop.b has 2",
        ),
        (
            "value_dependencies: {n: [{table: shop.a, columns: [x]}, {table: shop.a, columns: [y]}]}",
            "names shop.a twice",
        ),
        ("value_dependencies: {n: []}", "names no table"),
        ("object_dependencies: [{table: shop.a, parent: shop.a}]", "shop.a is its own parent"),
        ("object_dependencies: [{table: shop.a, parent: shop.b}, {table: shop.a, parent: shop.b}]", "is a duplicate"),
        ("object_dependencies: [{table: shop.a}]", "parent"),
    ],
)
def test_contradictory_definitions_are_refused(tmp_path, text, problem):
    (found,) = problems(tmp_path, APPLY % text)
    assert problem in found
    assert "applies.a." in found


def versions(
    old_image: OldImage = OldImage.FULL, store: MemoryStore | None = None, **types: tuple[str, str]
) -> tuple[MemoryStore, list[TableVersion]]:
    found = store or MemoryStore()
    made = []
    for number, (name, column) in enumerate((("orders", "number"), ("payments", "order_number")), 1):
        type_name, equality = types.get(name, ("pg_catalog.int8", "integer"))
        table = found.create_table(
            "shop",
            name,
            [
                destination_column("id", "pg_catalog.int4", equality="integer"),
                destination_column(column, type_name, equality=equality),
            ],
            key=["id"],
        )
        made.append(replace(version_of(table), object_number=number, old_image=old_image))
    return found, made


def findings(
    definitions: VirtualDependencies, store: MemoryStore, tables: list[TableVersion]
) -> list[tuple[str, bool]]:
    describe = lambda owner, name: store.tables[owner, name].table if (owner, name) in store.tables else None  # noqa: E731
    return [
        (f"{each.path}: {each.problem}", each.is_error)
        for each in dependency_column_findings("a", definitions, tables, describe)
    ]


def test_definitions_suited_to_the_tables_have_no_findings():
    store, tables = versions()
    assert findings(DEFINITIONS, store, tables) == []
    assert findings(DEFINITIONS, *versions(orders=("pg_catalog.int4", "integer"))) == []


def test_missing_columns_tables_and_log_values_are_found():
    store, tables = versions()
    (unknown,) = findings(
        VirtualDependencies(
            values=(
                ValueDependency(name="n", tables=(ValueColumns(owner="shop", name="orders", columns=("nubmer",)),)),
            )
        ),
        store,
        tables,
    )
    assert unknown == ("applies.a.value_dependencies.n: shop.orders has no column nubmer", True)
    (missing,) = findings(
        VirtualDependencies(
            objects=(ObjectDependency(owner="shop", name="orders", parent_owner="shop", parent_name="customers"),)
        ),
        store,
        tables,
    )
    assert missing == (
        "applies.a: has a virtual dependency definition for shop.customers, a table that it does not get",
        False,
    )
    lacking = findings(DEFINITIONS, *versions(OldImage.KEY))
    assert ["has no old values" in problem for problem, _ in lacking] == [True, True]
    assert not any(is_error for _, is_error in lacking)


@pytest.mark.parametrize(
    ("orders", "payments"),
    [
        (("pg_catalog.int8", "integer"), ("pg_catalog.numeric", "numeric")),
        (("pg_catalog.date", "bytes"), ("pg_catalog.timestamp", "bytes")),
        (("public.citext", "none"), ("public.citext", "none")),
    ],
)
def test_incomparable_types_are_found(orders, payments):
    ((problem, is_error),) = findings(DEFINITIONS, *versions(orders=orders, payments=payments))
    assert "the columns of shop.orders, shop.payments have types whose values cannot be compared" in problem
    assert not is_error


def test_fix_at_the_source_names_the_source_table():
    store, tables = versions(old_image=OldImage.KEY)
    describe = lambda owner, name: store.tables[owner, name].table  # noqa: E731
    at_source = {TableName.of(each): TableName("x", each.name) for each in tables}
    found = dependency_column_findings("a", DEFINITIONS, tables, describe, at_source=at_source)
    fixes = [each.fix for each in found if "REPLICA IDENTITY" in each.fix]
    assert fixes
    assert all('ALTER TABLE "x".' in fix for fix in fixes)
