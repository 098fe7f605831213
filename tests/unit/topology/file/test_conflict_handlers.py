"""Conflict handlers in a topology file: reading, refusals, and remaining warnings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.databases.conflict_lists import conflict_list_findings
from headrace.databases.memory.store import MemoryStore, destination_column
from headrace.lcr.batch import OldImage
from headrace.lcr.table_name import TableName, whole_rows
from headrace.rules.conflict_handlers import (
    TIMED_KINDS,
    ConflictHandler,
    ConflictRules,
    HistoryBounds,
    RowTimes,
    UncomparedColumns,
)
from tests.support.topologies.files import SITES, problems, read
from tests.support.values.writes import version_of
from topology.checks.static import check
from topology.edits.stored import spec_from_json, spec_to_json
from topology.plan import make_plan
from topology.problems import as_line

BETWEEN = SITES + "replicate: [{tables: [hr.t], between: [dbs1, dbs2]}]\n"
EVERY_KIND = (
    "{table: hr.t, method: maximum, resolution_column: at}, {table: hr.t, on: insert_exists, method: maximum,"
    " resolution_column: at}, {table: hr.t, on: update_exists, method: discard}, {table: hr.t, on: update_missing,"
    " method: discard}, {table: hr.t, on: delete_differs, method: overwrite}, {table: hr.t, on: delete_missing, method:"
    " discard}"
)


def with_handlers(handlers: str) -> str:
    return BETWEEN + f"conflict_handlers: [{handlers}]\n"


def meetings_in(folder, text: str) -> list[str]:
    return [as_line(each) for each in check(read(folder, text)) if "takes part in nothing" not in each.problem]


def test_handlers_of_the_file_apply_to_every_apply_process(tmp_path):
    spec = read(
        tmp_path,
        BETWEEN
        + """
conflict_handlers:
  - {table: hr.t, method: maximum, columns: [salary, changed_at], resolution_column: changed_at}
  - {table: hr.t, method: site_priority, columns: [boss], priority: [dbs2, dbs1]}
compare_old_values: [{table: hr.t, columns: [note], operations: [update], compare: false}]
compare_key_only: true
conflict_history: {count: 7, age_days: 2}
""",
    )
    expected = ConflictRules(
        handlers=(
            ConflictHandler(
                owner="hr", name="t", method="maximum", columns=("salary", "changed_at"), resolution_column="changed_at"
            ),
            ConflictHandler(owner="hr", name="t", method="site_priority", columns=("boss",), priority=("dbs2", "dbs1")),
        ),
        uncompared=(UncomparedColumns(owner="hr", name="t", columns=("note",), operations=("update",)),),
        compare_key_only=True,
        history=HistoryBounds(count=7, age_s=2 * 86_400.0),
    )
    assert [apply.conflicts for apply in spec.applies] == [expected, expected]
    assert spec_from_json(spec_to_json(spec)).applies[0].conflicts == expected
    assert ConflictRules.from_bytes(expected.to_bytes()) == expected


def test_latest_timestamp_covers_every_kind_that_time_can_decide(tmp_path):
    spec = read(
        tmp_path,
        BETWEEN
        + """
conflict_handlers: [{table: hr.t, method: latest_timestamp}]
tombstones: {retention_days: 2, count: 1000}
""",
    )
    assert [(apply.site, apply.conflicts.times) for apply in spec.applies] == [
        (
            site,
            RowTimes(
                site=site, sites=("dbs1", "dbs2", "dbs3", "relay"), has_tombstones=True, age_s=2 * 86_400.0, count=1000
            ),
        )
        for site in ("dbs2", "dbs1")
    ]
    found = spec.applies[0].conflicts
    assert [(each.kind, each.method, each.priority) for each in found.handlers] == [
        (kind, "latest_timestamp", ("dbs1", "dbs2", "dbs3", "relay")) for kind in TIMED_KINDS
    ]
    assert ConflictRules.from_bytes(found.to_bytes()) == found
    assert spec_from_json(spec_to_json(spec)).applies[0].conflicts == found
    times = found.of("hr", "t").times
    assert times is not None
    assert [times.rank(site) for site in ("dbs1", "dbs2", "relay", "elsewhere")] == [4, 3, 1, 0]
    assert found.of("hr", "u").times is None
    assert (
        read(tmp_path, BETWEEN + "conflict_handlers: [{table: hr.t, method: discard}]\ntombstones: {}\n")
        .applies[0]
        .conflicts.times
        is None
    )


def test_list_of_an_apply_process_replaces_the_files_list(tmp_path):
    spec = read(
        tmp_path,
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}}
propagations: {p1: {from: q1, to: q2}}
conflict_handlers: [{table: hr.t, method: discard}]
applies:
  a1: {site: dbs2, source: dbs1, queue: q2, conflict_handlers: [{table: hr.u, method: overwrite}], compare_key_only: true}
""",
    )
    (apply,) = spec.applies
    assert [(each.name, each.method) for each in apply.conflicts.handlers] == [("u", "overwrite")]
    assert apply.conflicts.compare_key_only


REFUSED = {
    "{table: hr.t, method: biggest}": "'biggest' is not one of maximum, minimum, overwrite, discard, site_priority,"
    " delta",
    "{table: hr.t, method: latest_timestamp, on: update_differs}": "latest_timestamp decides about the whole row, in"
    " every kind of conflict that time can decide: leave out on, columns and resolution_column",
    "{table: hr.t, method: latest_timestamp, columns: [a]}": "latest_timestamp decides about the whole row",
    "{table: hr.t, method: latest_timestamp, priority: [dbs1, dbs2]}": "lacks dbs3, relay: latest_timestamp decides"
    " ties between all sites: list every site",
    "{table: hr.t, method: latest_timestamp}, {table: hr.t, method: discard, on: update_exists}": "hr.t has the handler"
    " conflict_handlers[0] already, and latest_timestamp decides about the whole row: keep one of them",
    "{table: hr.*, method: discard}": "'hr.*' is a pattern: name one table: its columns decide",
    "{table: hr.t, method: maximum, columns: [a]}": "maximum has no resolution_column: name the column whose values"
    " decide",
    "{table: hr.t, method: maximum, columns: [a], resolution_column: b}": "the resolution column b is not in the column"
    " list: add it to columns",
    "{table: hr.t, method: discard, columns: [a, a]}": "columns names a column twice: name every column once",
    "{table: hr.t, method: delta, on: insert_exists}": "delta is no method for insert_exists: write one of maximum,"
    " minimum, overwrite, discard, site_priority",
    "{table: hr.t, method: overwrite, on: delete_missing}": "overwrite is no method for delete_missing: write one of"
    " discard",
    "{table: hr.t, method: discard, on: update_missing, columns: [a]}": "only a handler of update_differs has a column"
    " list, and this one is of update_missing: leave columns out: it decides about the row",
    "{table: hr.t, method: site_priority}": "site_priority has no priority: list the sites, the one that wins first:"
    " priority: [dbs1, dbs2]",
    "{table: hr.t, method: discard, priority: [dbs1, dbs2]}": "discard takes no priority: leave it out, or write"
    " method: site_priority",
    "{table: hr.t, method: site_priority, priority: [dbs1, dbs9]}": "there is no site 'dbs9'",
    "{table: hr.t, method: site_priority, priority: [dbs1, dbs1]}": "names a site twice: name every site once",
    "{table: hr.t, method: discard, columns: [a, b]}, {table: hr.t, method: overwrite, columns: [b, c]}": "b of hr.t is"
    " in the column list of conflict_handlers[0] already: put a column into one column list only",
    "{table: hr.t, method: discard}, {table: hr.t, method: overwrite, columns: [b]}": "every column of hr.t outside its"
    " key is in the column list of conflict_handlers[0] already: put a column into one column list only",
    "{table: hr.t, method: discard, on: insert_exists}, {table: hr.t, method: overwrite, on: insert_exists}": (
        "hr.t has a handler for insert_exists already, conflict_handlers[0]: keep one of them"
    ),
}


@pytest.mark.parametrize(("handlers", "expected"), REFUSED.items(), ids=REFUSED.keys())
def test_invalid_handler_is_refused_with_its_place(tmp_path, handlers, expected):
    (line, *_) = problems(tmp_path, with_handlers(handlers))
    assert line.startswith("conflict_handlers[")
    assert "(line " in line
    assert expected in line


def test_warning_lists_conflict_kinds_without_a_handler(tmp_path):
    (line,) = meetings_in(
        tmp_path, with_handlers("{table: hr.t, method: discard}, {table: hr.t, on: insert_exists, method: discard}")
    )
    assert (
        "dbs1 and dbs2 write the same tables, such as hr.t, and no conflict handler is set for update_exists,"
        " update_missing," in line
    )
    assert "insert_exists" not in line


def test_handlers_for_every_conflict_kind_remove_the_warning(tmp_path):
    assert meetings_in(tmp_path, with_handlers(EVERY_KIND)) == []


SUBSET = (
    SITES
    + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.t}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{table: hr.t}]}}
propagations:
  to2: {from: q1, to: q2, rules: {include: [{table: hr.t, subset: "region = 'a'"}]}}
  to1: {from: q2, to: q1}
applies:
  a2: {site: dbs2, source: dbs1, queue: q2}
  a1: {site: dbs1, source: dbs2, queue: q1}
"""
)


def test_subset_written_by_several_sites_is_a_warning_despite_handlers(tmp_path):
    handlers = f"conflict_handlers: [{EVERY_KIND}]\n"
    (line,) = meetings_in(tmp_path, SUBSET + handlers)
    assert line.startswith(
        "applies.a2: conflict handlers cannot keep hr.t equal: to2 takes a subset of it, and sites other than dbs1 write it,"
        " too. If a row leaves"
    )
    there = "\n".join(line for line in SUBSET.splitlines() if not line.startswith(("  c2:", "  to1:", "  a1:")))
    assert meetings_in(tmp_path, f"{there}\n{handlers}") == []  # dbs2 only receives


def test_handler_of_one_table_keeps_the_warning_for_other_tables(tmp_path):
    (line,) = meetings_in(
        tmp_path, SITES + f"replicate: [{{schemas: [hr], between: [dbs1, dbs2]}}]\nconflict_handlers: [{EVERY_KIND}]\n"
    )
    assert "such as hr.* (others), and no conflict handler is set:" in line


def test_site_without_the_handlers_of_other_sites_is_a_warning(tmp_path):
    text = BETWEEN + f"conflict_handlers: [{EVERY_KIND}]\n"
    spec = read(tmp_path, text)
    one = spec.applies[0]
    text += (
        f"applies: {{{one.name}: {{site: {one.site}, source: {one.source}, queue: {one.queue}, conflict_handlers:"
        " []}}\n"
    )
    (line,) = meetings_in(tmp_path, text)
    assert "and no conflict handler is set:" in line


def test_plan_shows_the_conflict_handling_of_each_apply_process(tmp_path):
    spec = read(
        tmp_path,
        with_handlers(
            "{table: hr.t, method: maximum, columns: [v, at], resolution_column: at}, {table: hr.t, on: insert_exists,"
            " method: discard}, {table: hr.t, on: delete_differs, method: site_priority, priority: [dbs2, dbs1]}"
        )
        + "compare_old_values: [{table: hr.t, columns: [note], operations: [update]}]\n",
    )
    works = [actor.work for actor in make_plan(spec).actors if actor.name.startswith("apply:")]
    assert [work.partition("; conflicts: ")[2] for work in works] == [
        "hr.t update_differs: maximum(at) over v, at; hr.t insert_exists: discard; hr.t delete_differs: site_priority"
        " (dbs2 before dbs1); hr.t: note not compared (update)"
    ] * 2


# --------------------------------------------------------------------------- against the tables


def checked(
    *handlers: ConflictHandler, old_image: OldImage = OldImage.FULL, key: tuple[str, ...] = ("id",), **rules: object
) -> list[str]:
    store = MemoryStore()
    table = store.create_table(
        "hr",
        "t",
        [
            destination_column("id", "pg_catalog.int4"),
            destination_column("v"),
            destination_column("n", "pg_catalog.int4"),
            destination_column("doc", "pg_catalog.json"),
        ],
        key=key,
    )
    version = replace(version_of(table), old_image=old_image)
    return [
        as_line(each)
        for each in conflict_list_findings("a1", ConflictRules(handlers=handlers, **rules), version, table)
    ]


def of(method: str, *columns: str, by: str = "", kind: str = "update_differs") -> ConflictHandler:
    return ConflictHandler(owner="hr", name="t", method=method, columns=columns, resolution_column=by, kind=kind)


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (of("maximum", "v", "x", by="v"), "the table has no column x: name one of id, v, n, doc"),
        (of("maximum", "v", "id", by="v"), "id is in the key, and a key column is in no column list: leave it out"),
        (
            of("maximum", "doc", by="doc"),
            "the resolution column doc is json, whose values have no order: name a column with a number, a time or a"
            " text",
        ),
        (of("maximum", by="gone"), "the table has no column gone"),
        (of("delta", "v"), "delta cannot add values of v, which is text"),
    ],
)
def test_handler_unsuited_to_its_table_is_refused(handler, expected):
    (line,) = checked(handler)
    assert line.startswith(f"applies.a1 table hr.t {handler} on update_differs: ")
    assert expected in line


def test_handler_suited_to_its_table_has_no_findings():
    assert checked(of("maximum", "v", "n", by="n"), of("delta", "n"), of("overwrite", kind="insert_exists")) == []


def test_site_priority_with_all_columns_in_one_list_is_a_warning():
    (line,) = checked(of("site_priority"))
    assert line.startswith(
        "applies.a1 table hr.t site_priority on update_differs: has every column outside the key in one list: "
    )
    assert (
        checked(of("site_priority", "v"), of("site_priority", "n", "doc"), of("site_priority", kind="insert_exists"))
        == []
    )


def test_handler_whose_conflicts_are_undetectable_is_refused():
    (line,) = checked(of("delta", "n"), compare_key_only=True)
    assert line.startswith(
        "applies.a1 table hr.t delta on update_differs: puts the LCR's number in place of the row's, without a"
        " conflict, where compare_old_values or compare_key_only leaves n out: "
    )
    (line,) = checked(
        of("overwrite", kind="delete_differs"), of("discard", kind="insert_exists"), compare_key_only=True
    )
    assert (
        "overwrite on delete_differs: is never asked, because compare_old_values or compare_key_only leaves v, n, doc"
        " out: " in line
    )
    some = UncomparedColumns(owner="hr", name="t", columns=("n",), operations=("update",))
    assert len(checked(of("delta", "n"), uncompared=(some,))) == 1
    # v is compared
    assert checked(of("maximum", "v", "n", by="v"), of("discard", kind="delete_differs"), uncompared=(some,)) == []


def test_delta_of_a_column_that_a_function_converts_is_refused():
    table = MemoryStore().create_table(
        "hr",
        "t",
        [destination_column("id", "pg_catalog.int4"), destination_column("n", "pg_catalog.int4")],
        key=("id",),
    )
    here = replace(
        table,
        columns=(
            table.columns[0],
            replace(table.columns[1], type_name="pg_catalog.numeric", converted=("pg_catalog.int4",)),
        ),
    )
    (finding,) = conflict_list_findings("a1", ConflictRules(handlers=(of("delta", "n"),)), version_of(table), here)
    assert finding.is_error
    assert "delta cannot add values of n, which a function of the schema headrace converts from int4" in finding.problem


def test_text_columns_with_site_dependent_order_are_a_warning():
    table = MemoryStore().create_table(
        "hr", "t", [destination_column("id", "pg_catalog.int4"), destination_column("v")], key=("id",)
    )
    here = replace(table, columns=(table.columns[0], replace(table.columns[1], has_one_order=False)))
    (finding,) = conflict_list_findings(
        "a1", ConflictRules(handlers=(of("maximum", "v", by="v"),)), version_of(table), here
    )
    assert not finding.is_error
    assert "texts of the resolution column v have the order of a collation" in finding.problem
    assert 'ALTER TABLE "hr"."t" ALTER COLUMN "v" TYPE ... COLLATE "C";' in finding.fix
    assert not list(
        conflict_list_findings("a1", ConflictRules(handlers=(of("overwrite", "v"),)), version_of(table), here)
    )


def test_missing_old_values_are_requested_from_the_log():
    (line,) = checked(of("maximum", "v", "n", by="n"), old_image=OldImage.KEY)
    assert f"at the source: {whole_rows(TableName('hr', 't'))}" in line
    assert (
        checked(of("overwrite", kind="insert_exists"), of("discard", kind="update_missing"), old_image=OldImage.KEY)
        == []
    )
    assert len(checked(of("overwrite", kind="update_missing"), old_image=OldImage.KEY)) == 1


def test_a_table_without_a_key_has_no_conflict_handlers():
    assert checked(of("discard"), key=()) == [
        "applies.a1 table hr.t: has conflict handlers, and no key that identifies a row: add a primary key at the"
        " destination, or remove the handlers"
    ]


def test_uncompared_columns_must_exist_outside_the_key():
    off = UncomparedColumns(owner="hr", name="t", columns=("id", "nowhere"), operations=("update",))
    assert [line.partition(": ")[2] for line in checked(uncompared=(off,))] == [
        "id is in the key, which finds the row: leave it out: only columns outside the key are compared",
        "the table has no column nowhere: name one of id, v, n, doc",
    ]


def test_fix_at_the_source_names_the_source_table_quoted():
    table = MemoryStore().create_table(
        "hr", "t", [destination_column("id", "pg_catalog.int4"), destination_column("v")], key=("id",)
    )
    version = replace(version_of(table), old_image=OldImage.KEY)
    rules = ConflictRules(handlers=(of("maximum", "v", by="v"),))
    (finding,) = conflict_list_findings("a1", rules, version, table, at_source=TableName("x", 'Odd "emp'))
    assert finding.fix.startswith('at the source: ALTER TABLE "x"."Odd ""emp" REPLICA IDENTITY FULL; -- if it is')
