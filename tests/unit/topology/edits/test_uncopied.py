"""Removing a source before one of its destinations has its rows, while another destination has them."""

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
    """Return the paths of the findings when tables of (source, destination) are in these states."""

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
def test_site_without_the_rows_of_a_removed_source_is_named(before, without_a, state):
    """c began with the changes of b when b was empty; then b got the rows of a, and a is removed."""
    states = {("a", "b"): state, ("b", "c"): "DONE", ("c", "b"): "DONE"}
    assert found(before, without_a, states) == ["sites.c table public.t"]


@pytest.mark.parametrize("state", ["COPYING", "FAILED", "LEFT"])
def test_unfinished_copy_does_not_count_as_rows_copied(before, without_a, state):
    states = {("a", "b"): "DONE", ("a", "c"): state, ("b", "c"): "DONE"}
    assert found(before, without_a, states) == ["sites.c table public.t"]


@pytest.mark.parametrize("state", ["DONE", "KEPT", "JOINING"])
def test_source_whose_rows_are_copied_can_be_removed(before, without_a, state):
    assert found(before, without_a, {("a", "b"): "DONE", ("a", "c"): state, ("b", "c"): "DONE"}) == []


@pytest.mark.parametrize("state", ["LEFT", "FAILED", ""])
def test_pending_copy_from_a_neighbour_includes_the_sources_rows(before, without_a, state):
    assert found(before, without_a, {("a", "b"): "DONE", ("b", "c"): state}) == []


def test_running_copy_from_a_neighbour_may_lack_the_sources_rows(before, without_a):
    assert found(before, without_a, {("a", "b"): "DONE", ("b", "c"): "COPYING"}) == ["sites.c table public.t"]


def test_hub_replacing_a_direct_way_copies_the_sources_rows(tmp_path):
    direct = read_anyway(tmp_path, f"{WRITERS}replicate:\n  - {{tables: [public.t], from: a, to: [b, c]}}\n")
    hub = read_anyway(tmp_path, f"{WRITERS}replicate:\n  - {{tables: [public.t], hub: b, spokes: [a, c]}}\n")
    assert found(direct, hub, {("a", "b"): "DONE", ("a", "c"): "FAILED"}) == []


def test_table_that_the_neighbour_no_longer_sends_is_not_named(tmp_path, before):
    other = read_anyway(tmp_path, ALL.replace("[a, b, c]", "[b, c]").replace("public.t", "public.u"))
    assert found(before, other, {("a", "b"): "DONE", ("b", "c"): "DONE"}) == []


def test_source_without_any_copied_rows_can_be_removed(before, without_a):
    """The source never existed: its name was misspelt."""
    assert found(before, without_a, {("b", "c"): "DONE", ("c", "b"): "DONE"}) == []


def test_site_removed_together_with_the_source_is_not_named(tmp_path, before):
    sites = WRITERS.replace('  c: {database: {kind: postgres, dsn: "dbname=c"}}\n', "")
    only = read_anyway(tmp_path, f"{sites}replicate:\n  - {{tables: [public.u], from: b, to: [a]}}\n")
    assert [site.name for site in only.sites] == ["a", "b"]
    assert found(before, only, {("a", "b"): "DONE", ("b", "c"): "DONE"}) == []


def test_table_that_the_removed_source_does_not_send_is_not_named(tmp_path, without_a):
    """c was to receive none of the rows that b has from a."""
    pairs = (
        "replicate:\n  - {tables: [public.t], between: [a, b]}\n  - {tables: [public.t], between: [b, c]}\n"
        "  - {tables: [public.u], from: a, to: [c]}\n"
    )
    assert found(read_anyway(tmp_path, WRITERS + pairs), without_a, {("a", "b"): "DONE", ("b", "c"): "DONE"}) == []


@pytest.mark.parametrize("state", ["COPYING", "COMPARING", "FAILED"])
@pytest.mark.parametrize("beside", ["AWAITING", "COPYING", "DONE"])
def test_remaining_partial_copy_is_named_without_another_holder(before, without_a, state, beside):
    assert found(before, without_a, {("a", "c"): state, ("b", "c"): beside}) == ["sites.c table public.t"]


def test_table_whose_copy_never_began_has_no_partial_copy(before, without_a):
    failed = [replace(record("a", "FAILED"), scn=Scn(0))]
    assert list(uncopied(before, without_a, lambda apply: failed if apply.source == "a" else [])) == []


def test_partial_copy_in_a_table_without_other_writers_is_not_named(tmp_path):
    one, none = (
        read_anyway(tmp_path, f"{WRITERS}replicate:\n  - {{tables: [public.{name}], from: a, to: [b]}}\n")
        for name in ("t", "u")
    )
    assert found(one, none, {("a", "b"): "COPYING"}) == []
