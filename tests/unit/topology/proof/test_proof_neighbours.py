"""Conflict handlers that compare sites, for changes forwarded by another site: findings of `check` with the path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.topologies.files import SITES, findings

EXAMPLES = Path(__file__).parents[4] / "examples"
HUB, EXPLICIT = ((EXAMPLES / f"{name}.yaml").read_text() for name in ("hub_and_spoke", "hub_and_spoke_explicit"))
LATEST = "conflict_handlers: [{table: stock.t, method: latest_timestamp}]\n"
CASCADE = """
queues: {q1: {site: dbs1}, q2: {site: dbs2}, i2: {site: dbs2}, i3: {site: dbs3}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: stock.*}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{table: stock.*, tagged: true}]}}
propagations: {p1: {from: q1, to: i2}, p2: {from: q2, to: i3}}
applies:
  a1: {site: dbs2, source: dbs1, queue: i2}
  a2: {site: dbs3, source: dbs2, queue: i3}
"""
BACK = (
    "captures:\n",
    "captures:\n  c3: {site: dbs3, source: dbs3, queue: q3, rules: {include: [{table: stock.*}]}}\n",
    "propagations: {",
    "propagations: {p3: {from: q3, to: i23}, ",
    "queues: {",
    "queues: {q3: {site: dbs3}, i23: {site: dbs2}, ",
    "applies:\n",
    'applies:\n  a3: {site: dbs2, source: dbs3, queue: i23, tag: "33"}\n',
)
FIX = (
    "replicate stock.t directly between the sites that write it, and let captures.{capture} leave out what apply"
    " processes of {hub} write in it (tagged: false); or choose another conflict handler (docs/how/conflicts.md)"
)


def said(folder: Path, text: str) -> list[str]:
    """Return the findings on handlers that compare sites."""
    return [line for line in findings(folder, text)[1] if "latest_timestamp" in line or "site_priority" in line]


def written_back(text: str) -> str:
    """Return the cascade with its last site's user changes sent to the middle site and kept from returning."""
    for old, new in zip(BACK[::2], BACK[1::2], strict=True):
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text.replace(
        "p2: {from: q2, to: i3}", 'p2: {from: q2, to: i3, rules: {exclude: [{global: true, tags: ["33"]}]}}'
    )


def test_latest_timestamp_over_a_hub_is_refused_with_the_path(tmp_path):
    assert said(tmp_path, HUB + LATEST) == [
        "error: captures.capture_dbs1.rules (made by replicate, line 13): stock.t has latest_timestamp at dbs3, and its"
        " changes made at dbs2 arrive there with the"
        " time of dbs1's commit: dbs2 -> dbs1 (applied by apply_from_dbs2_at_dbs1 with tag 64627332) -> dbs3 (applied"
        " by apply_from_dbs1_at_dbs3); so they do at dbs4"
        " and dbs2. They can win there against later changes, which win elsewhere: the sites become different: change"
        " the entries of replicate that share these tables, or write captures.capture_dbs1 out with this change: "
        + FIX.format(capture="capture_dbs1", hub="dbs1"),
    ]
    assert len(said(tmp_path, EXPLICIT + LATEST)) == 1
    assert len(said(tmp_path, HUB + LATEST + "tombstones: {retention_days: 7}\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        EXPLICIT.replace("table: stock.*, tagged: true", "table: stock.*"),
        EXPLICIT.replace(
            "{table: stock.*, tagged: true}",
            "{table: stock.*, tagged: true}], exclude: [{table: stock.t, tagged: true}",
        ),
        HUB.replace("hub: dbs1, spokes:", "between:").replace("[dbs2, ", "[dbs1, dbs2, "),
        HUB.replace("tables: [stock.*]", "tables: [stock.x]"),
    ],
    ids=[
        "the hub takes no tagged changes",
        "nor those of the table",
        "all sites are linked directly",
        "the table is not in the hub",
    ],
)
def test_latest_timestamp_is_accepted_when_no_change_is_forwarded(tmp_path, text):
    assert said(tmp_path, text + LATEST) == []


def test_other_tables_of_the_hub_have_no_findings(tmp_path):
    found = said(tmp_path, HUB.replace("[stock.*]", "[stock.*, hr.*]") + LATEST)
    assert ["hr" in line for line in found] == [False]


def test_latest_timestamp_behind_a_hub_is_refused_only_with_local_writes(tmp_path):
    assert said(tmp_path, SITES + CASCADE + LATEST) == []
    (line,) = said(tmp_path, SITES + written_back(CASCADE) + LATEST)
    assert line.startswith("error: captures.c2.rules (line ")
    assert (
        "at dbs3, and its changes made at dbs1 arrive there with the time of dbs2's commit: dbs1 -> dbs2 (applied by a1"
        " with tag 00) -> dbs3 (applied by a2). They can win" in line
    )


def test_handler_at_the_arriving_apply_and_its_table_name_decide(tmp_path):
    text = SITES + written_back(CASCADE)
    elsewhere = text.replace(
        "source: dbs1, queue: i2",
        "source: dbs1, queue: i2, conflict_handlers: [{table: stock.t, method: latest_timestamp}]",
    )
    assert said(tmp_path, elsewhere) == []
    there = text.replace(
        "source: dbs2, queue: i3",
        "source: dbs2, queue: i3, conflict_handlers: [{table: stock.t, method: latest_timestamp}]",
    )
    assert len(said(tmp_path, there)) == 1
    renaming = there.replace(
        "source: dbs1, queue: i2}",
        "source: dbs1, queue: i2, rules: {include: [{table: stock.old, transform: [{rename_table: stock.t}]}]}}",
    )
    (line,) = said(tmp_path, renaming)
    assert "stock.t has latest_timestamp at dbs3, and changes of stock.old made at dbs1 arrive there" in line


def test_condition_on_the_way_turns_the_error_into_a_warning(tmp_path):
    text = SITES + written_back(CASCADE).replace(
        "{table: stock.*, tagged: true}",
        "{table: stock.t, tagged: true, condition: new.id > 5}, {table: stock.x, tagged: true}",
    )
    (line,) = said(tmp_path, text + LATEST)
    assert line.startswith("warning: captures.c2.rules")
    assert "as far as the conditions of c2 are TRUE" in line


PRIORITY = "conflict_handlers: [{{table: stock.t, method: site_priority, priority: [{}]}}]\n"


def test_site_priority_that_lacks_the_hub_is_a_warning(tmp_path):
    assert said(tmp_path, HUB + PRIORITY.format("dbs2, dbs3, dbs4")) == [
        "warning: conflict_handlers (line 15): site_priority of stock.t lists dbs2, dbs3, dbs4, and"
        " applies.apply_from_dbs1_at_dbs2 has to decide between dbs1 and"
        " dbs2 (and 5 others likewise): no site wins there, and such a conflict goes into the error queue: list dbs1,"
        " too: over a hub, the hub and a spoke are compared, whichever site made the change",
    ]
    assert said(tmp_path, HUB + PRIORITY.format("dbs2, dbs1, dbs3, dbs4")) == []


def test_site_priority_without_conflicts_is_no_warning(tmp_path):
    assert (
        said(
            tmp_path,
            SITES + "replicate: [{tables: [stock.*], from: dbs1, to: [dbs2]}]\n" + PRIORITY.format("dbs1, dbs3"),
        )
        == []
    )
