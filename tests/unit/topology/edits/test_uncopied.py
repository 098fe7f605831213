"""A source leaves before one of its destinations has its rows, which another one has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.databases.ports import Instantiation
from headrace.lcr.scn import Scn
from tests.support.topologies.files import WRITERS, read_anyway
from topology.edits.uncopied import uncopied
from topology.spec import ApplySpec, TopologySpec

ALL = f"{WRITERS}replicate:\n  - {{tables: [public.t], between: [a, b, c]}}\n"


def record(source: str, state: str, name: str = "t") -> Instantiation:
    return Instantiation(
        source=source, identity=f"{source}.{name}", owner="public", name=name, scn=Scn(9), state=state, digest="copied"
    )


def found(before: TopologySpec, after: TopologySpec, states: Mapping[tuple[str, str], str]) -> list[str]:
    """The paths of what is found, where (source, destination) have tables in these states."""

    def records(apply: ApplySpec) -> list[Instantiation]:
        state = states.get((apply.source, apply.site))
        return [record(apply.source, state)] if state else []

    return [finding.path for finding in uncopied(before, after, records)]


@pytest.fixture
def before(tmp_path: Path) -> TopologySpec:
    return read_anyway(tmp_path, ALL)


@pytest.fixture
def without_a(tmp_path: Path) -> TopologySpec:
    return read_anyway(tmp_path, ALL.replace("[a, b, c]", "[b, c]"))


@pytest.mark.parametrize("state", ["DONE", "KEPT", "JOINING", "LEFT"])
def test_a_site_that_has_not_got_the_rows_of_a_source_that_leaves_is_named(before, without_a, state):
    """c has begun with the changes of b when b was empty; then b got the rows of a, and a leaves."""
    states = {("a", "b"): state, ("b", "c"): "DONE", ("c", "b"): "DONE"}
    assert found(before, without_a, states) == ["sites.c table public.t"]


@pytest.mark.parametrize("state", ["COPYING", "FAILED", "LEFT"])
def test_a_copy_that_was_begun_has_not_brought_the_rows(before, without_a, state):
    states = {("a", "b"): "DONE", ("a", "c"): state, ("b", "c"): "DONE"}
    assert found(before, without_a, states) == ["sites.c table public.t"]


@pytest.mark.parametrize("state", ["DONE", "KEPT", "JOINING"])
def test_a_source_that_has_brought_its_rows_may_leave(before, without_a, state):
    assert found(before, without_a, {("a", "b"): "DONE", ("a", "c"): state, ("b", "c"): "DONE"}) == []


@pytest.mark.parametrize("state", ["LEFT", "FAILED", ""])
def test_what_the_neighbour_has_still_to_copy_comes_with_its_rows(before, without_a, state):
    assert found(before, without_a, {("a", "b"): "DONE", ("b", "c"): state}) == []


def test_a_snapshot_of_the_neighbour_may_be_older_than_what_it_has(before, without_a):
    assert found(before, without_a, {("a", "b"): "DONE", ("b", "c"): "COPYING"}) == ["sites.c table public.t"]


def test_a_hub_that_takes_the_place_of_the_direct_way_copies_what_it_has(tmp_path):
    direct = read_anyway(tmp_path, f"{WRITERS}replicate:\n  - {{tables: [public.t], from: a, to: [b, c]}}\n")
    hub = read_anyway(tmp_path, f"{WRITERS}replicate:\n  - {{tables: [public.t], hub: b, spokes: [a, c]}}\n")
    assert found(direct, hub, {("a", "b"): "DONE", ("a", "c"): "FAILED"}) == []


def test_a_table_that_the_neighbour_sends_no_more_either_is_not_missed(tmp_path, before):
    other = read_anyway(tmp_path, ALL.replace("[a, b, c]", "[b, c]").replace("public.t", "public.u"))
    assert found(before, other, {("a", "b"): "DONE", ("b", "c"): "DONE"}) == []


def test_a_source_that_has_brought_nothing_anywhere_may_leave(before, without_a):
    """It was never there: a name that was written wrong."""
    assert found(before, without_a, {("b", "c"): "DONE", ("c", "b"): "DONE"}) == []


def test_a_site_that_leaves_too_lacks_nothing(tmp_path, before):
    sites = WRITERS.replace('  c: {database: {kind: postgres, dsn: "dbname=c"}}\n', "")
    only = read_anyway(tmp_path, f"{sites}replicate:\n  - {{tables: [public.u], from: b, to: [a]}}\n")
    assert [site.name for site in only.sites] == ["a", "b"]
    assert found(before, only, {("a", "b"): "DONE", ("b", "c"): "DONE"}) == []


def test_a_table_that_the_one_that_leaves_does_not_bring_is_not_named(tmp_path, without_a):
    """Of what b has of a, c was to get nothing."""
    pairs = (
        "replicate:\n  - {tables: [public.t], between: [a, b]}\n  - {tables: [public.t], between: [b, c]}\n"
        "  - {tables: [public.u], from: a, to: [c]}\n"
    )
    assert found(read_anyway(tmp_path, WRITERS + pairs), without_a, {("a", "b"): "DONE", ("b", "c"): "DONE"}) == []


@pytest.mark.parametrize("state", ["COPYING", "COMPARING", "FAILED"])
@pytest.mark.parametrize("beside", ["AWAITING", "COPYING", "DONE"])
def test_half_a_copy_that_stays_is_named_also_where_nobody_else_has_the_source_s_rows(before, without_a, state, beside):
    assert found(before, without_a, {("a", "c"): state, ("b", "c"): beside}) == ["sites.c table public.t"]


def test_a_table_whose_copy_never_began_has_no_half_of_it(before, without_a):
    failed = [replace(record("a", "FAILED"), scn=Scn(0))]
    assert list(uncopied(before, without_a, lambda apply: failed if apply.source == "a" else [])) == []


def test_half_a_copy_in_a_table_that_nothing_else_writes_is_left_to_its_way_back(tmp_path):
    one, none = (
        read_anyway(tmp_path, f"{WRITERS}replicate:\n  - {{tables: [public.{name}], from: a, to: [b]}}\n")
        for name in ("t", "u")
    )
    assert found(one, none, {("a", "b"): "COPYING"}) == []
