"""Findings of `check` on wrong topologies: one finding per cause, with the path and the part to change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.topologies.files import SITES, findings
from topology.file.reading import examine

HUB = (Path(__file__).parents[4] / "examples" / "hub_and_spoke_explicit.yaml").read_text()
N_WAY = SITES + "replicate:\n  - {tables: [hr.*], between: [dbs1, dbs2, dbs3]}\n"
TO_DBS2 = '{from: q_dbs1, to: q_dbs2_in, rules: {include: [{table: stock.*, not_tags: ["64627332"]}]}}'
AT_DBS2 = "source: dbs1, queue: q_dbs2_in}"
HUB_PATH = "dbs2 -> dbs1 (applied by apply_from_dbs2_at_dbs1 with tag 64627332)"
USUAL = ("no conflict handler", "takes part in nothing", "no apply process behind it")
LOST = "both write these tables, which become different"
CHAIN = "dbs1 -> dbs2 (applied by apply_from_dbs1_at_dbs2 with tag 00)"
LEFT_TO_WISH = (
    "if dbs2 is to forward other sites' changes: let its include rules"
    ' take tag "00" too (tagged: true takes all), and exclude on the way to '
    "each neighbour what came from it; or replicate from dbs1 to dbs3 without dbs2 between"
)
OF_REPLICATE = (
    "change the entries of replicate that share these tables, or write captures.capture_dbs2 out with this change: "
)

# The mistake -> the file, and its findings.
WRONG = {
    "a hub forgets to leave out what came from a spoke": (
        HUB.replace(TO_DBS2, "{from: q_dbs1, to: q_dbs2_in}"),
        [
            "error: propagations.dbs1_to_dbs2.rules (line 34): changes of stock.* made at dbs2 return there: "
            + HUB_PATH
            + " -> dbs2 (applied by "
            "apply_from_dbs1_at_dbs2): leave out what apply_from_dbs2_at_dbs1 wrote: exclude: [{global: true, tags:"
            ' ["64627332"]}]'
        ],
    ),
    "a hub leaves out the wrong spoke": (
        HUB.replace('not_tags: ["64627334"]', 'not_tags: ["64627333"]'),
        [
            "error: propagations.dbs1_to_dbs4.rules (line 36): changes of stock.* made at dbs4 return there: dbs4 -> dbs1"
            " (applied by "
            "apply_from_dbs4_at_dbs1 with tag 64627334) -> dbs4 (applied by apply_from_dbs1_at_dbs4): leave out what"
            " apply_from_dbs4_at_dbs1 wrote: "
            'exclude: [{global: true, tags: ["64627334"]}]',
            "error: propagations.dbs1_to_dbs4.rules (line 36): changes of stock.* made at dbs3 never arrive at dbs4:"
            " dbs3 -> dbs1 (applied by "
            "apply_from_dbs3_at_dbs1 with tag 64627333), and propagations.dbs1_to_dbs4 does not take tag 64627333 on"
            f" to dbs4; {LOST}: let its "
            'rules take tag "64627333", or replicate from dbs3 to dbs4 without dbs1 between',
        ],
    ),
    "a spoke has the tag of another": (
        HUB.replace('queue: q_dbs1_in, tag: "64627333"', 'queue: q_dbs1_in, tag: "64627332"'),
        [
            "error: applies.apply_from_dbs3_at_dbs1.tag (line 41): changes of stock.* made at dbs3 return there: dbs3 ->"
            " dbs1 (applied by "
            "apply_from_dbs3_at_dbs1 with tag 64627332) -> dbs3 (applied by apply_from_dbs1_at_dbs3): 64627332 is the"
            " tag of "
            "applies.apply_from_dbs2_at_dbs1, too, whose changes must go to dbs3: give this one a tag of its own, such"
            ' as tag: "64627333", and leave that out at propagations.dbs1_to_dbs3: exclude: [{global: true, tags:'
            ' ["64627333"]}]',
            "error: applies.apply_from_dbs3_at_dbs1.tag (line 41): changes of stock.* made at dbs3 never arrive at"
            " dbs2: dbs3 -> dbs1 (applied by "
            "apply_from_dbs3_at_dbs1 with tag 64627332), and propagations.dbs1_to_dbs2 does not take tag 64627332 on"
            f" to dbs2; {LOST}: "
            "applies.apply_from_dbs2_at_dbs1 has the same tag, which keeps the changes of dbs2 from returning:"
            " give this one a tag of its "
            'own, such as tag: "64627333"',
        ],
    ),
    "a hub forwards nothing, and all write": (
        HUB.replace("table: stock.*, tagged: true", "table: stock.*"),
        [
            "error: captures.capture_dbs1.rules (line 24): changes of stock.* made at dbs2 never arrive at dbs3:"
            f" {HUB_PATH}, and "
            "captures.capture_dbs1 does not take tag 64627332 on to dbs3 (and so between 5 other pairs of sites);"
            f" {LOST}: if dbs1 is to forward other sites' changes:"
            ' let its include rules take tag "64627332" and "64627333" and "64627334" too (tagged:'
            " true takes all), and exclude "
            "on the way to each neighbour what came from it; or replicate from dbs2 to dbs3 without dbs1 between"
        ],
    ),
    "an apply process at a spoke takes untagged changes alone": (
        HUB.replace(AT_DBS2, "source: dbs1, queue: q_dbs2_in, rules: {include: [{table: stock.*}]}}"),
        [
            "error: applies.apply_from_dbs1_at_dbs2.rules (line 43): changes of stock.* made at dbs3 never arrive at"
            " dbs2: dbs3 -> dbs1 (applied by "
            "apply_from_dbs3_at_dbs1 with tag 64627333), and applies.apply_from_dbs1_at_dbs2 does not take tag 64627333"
            " on to dbs2 (and so between 1 "
            f'other pair of sites); {LOST}: let its rules take tag "64627333" and "64627334", or replicate from dbs3 to'
            " dbs2 without dbs1 between"
        ],
    ),
    "a spoke captures what the hub wrote": (
        HUB.replace(
            "queue: q_dbs3, rules: {include: [{table: stock.*}]}",
            "queue: q_dbs3, rules: {include: [{table: stock.*, tagged: true}]}",
        ),
        [
            "error: captures.capture_dbs3.rules (line 26): changes of stock.* made at dbs1 return there: dbs1 -> dbs3"
            " (applied by "
            "apply_from_dbs1_at_dbs3 with tag 00) -> dbs1 (applied by apply_from_dbs3_at_dbs1); so do those made at"
            " dbs2 and dbs4: write tagged: false (the default) in its include rules: dbs3 then sends only what its"
            " users write"
        ],
    ),
    "an apply process at a spoke has no tag": (
        HUB.replace(AT_DBS2, "source: dbs1, queue: q_dbs2_in, tag: null}"),
        [
            "error: applies.apply_from_dbs1_at_dbs2.tag (line 43): changes of stock.* made at dbs1 return there: dbs1 ->"
            " dbs2 (applied by "
            "apply_from_dbs1_at_dbs2 without a tag) -> dbs1 (applied by apply_from_dbs2_at_dbs1); so do those made at"
            " dbs3 and dbs4: give it a "
            'tag, such as tag: "00"'
        ],
    ),
    "an apply process names a table that nobody captures": (
        HUB.replace(
            AT_DBS2,
            "source: dbs1, queue: q_dbs2_in, rules: {include: [{table: stok.items, tagged: true}, {table: stock.*,"
            " tagged: true}]}}",
        ),
        [
            "error: applies.apply_from_dbs1_at_dbs2.rules.include[0] (line 43): no change of stok.items ever arrives on"
            " the way capture_dbs1 -> q_dbs1 "
            "-> dbs1_to_dbs2 -> q_dbs2_in -> apply_from_dbs1_at_dbs2: captures.capture_dbs1 does not take stok.items:"
            " add the table to captures.capture_dbs1.rules, or take it out here"
        ],
    ),
    "an apply process names tags that do not come": (
        HUB.replace(
            AT_DBS2,
            'source: dbs1, queue: q_dbs2_in, rules: {include: [{table: stock.*, tags: ["64627332"]}, {table: stock.*,'
            " tagged: true}]}}",
        ),
        [
            "error: applies.apply_from_dbs1_at_dbs2.rules.include[0] (line 43): no change of stock.* ever arrives on"
            " the way capture_dbs1 -> q_dbs1 "
            "-> dbs1_to_dbs2 -> q_dbs2_in -> apply_from_dbs1_at_dbs2: propagations.dbs1_to_dbs2 takes stock.* with"
            " other tags only: let propagations.dbs1_to_dbs2.rules take the tags that this rule takes, or correct the"
            " rule"
        ],
    ),
    "a chain that forwards nothing": (
        SITES
        + "replicate:\n  - {tables: [hr.*], from: dbs1, to: [dbs2]}\n  - {tables: [hr.*], from: dbs2, to: [dbs3]}\n",
        [
            "warning: captures.capture_dbs2.rules (made by replicate, line 7): changes of hr.* made at dbs1 never"
            f" arrive at dbs3: {CHAIN}, and "
            "captures.capture_dbs2 does not take tag 00 on to dbs3; dbs3 gets what users of dbs2 write, and not this:"
            f" {OF_REPLICATE}{LEFT_TO_WISH}; no action is needed if this is intended"
        ],
    ),
    "two pairs that share a site and a table": (
        SITES
        + "replicate:\n  - {tables: [hr.*], between: [dbs1, dbs2]}\n  - {tables: [hr.*], between: [dbs2, dbs3]}\n",
        [
            "error: captures.capture_dbs2.rules (made by replicate, line 7): changes of hr.* made at dbs1 never arrive"
            f" at dbs3: {CHAIN}, and "
            f"captures.capture_dbs2 does not take tag 00 on to dbs3 (and so between 1 other pair of sites); {LOST}:"
            f" {OF_REPLICATE}{LEFT_TO_WISH}"
        ],
    ),
    "one of many propagations leaves out a table": (
        N_WAY
        + "propagations:\n  dbs1_to_dbs2: {from: q_dbs1, to: q_dbs2_in, rules: {exclude: [{table: hr.salaries}]}}\n",
        [
            "error: propagations.dbs1_to_dbs2.rules (line 10): changes of hr.salaries made at dbs1 never arrive at"
            " dbs2: on the direct way "
            f"propagations.dbs1_to_dbs2 does not take them, and no other site forwards them; {LOST}: take them out of"
            " its exclude rules"
        ],
    ),
    "two apply processes take the same": (
        N_WAY
        + "queues: {q9: {site: dbs2}}\npropagations: {p9: {from: q_dbs1, to: q9}}\napplies: {a9: {site: dbs2, source:"
        " dbs1, queue: q9}}\n",
        [
            "error: applies.a9 (line 11): applies.apply_from_dbs1_at_dbs2 applies the same changes of dbs1 to dbs2,"
            " such as those of hr.*: keep one of them, or let their rules include different tables"
        ],
    ),
    "two hubs that share a spoke": (
        SITES + "replicate:\n  - {schemas: [hr], from: dbs1, to: [dbs2, dbs3]}\n  - {schemas: [hr], hub: dbs2, spokes:"
        " [dbs3]}\n",
        [
            "error: captures.capture_dbs2.rules (made by replicate, line 7): changes of hr.* made at dbs1 arrive at"
            " dbs3 twice: dbs1 -> dbs3 (applied "
            f"by apply_from_dbs1_at_dbs3); and {CHAIN} -> dbs3 (applied by apply_from_dbs2_at_dbs3):"
            f" {OF_REPLICATE}write tagged: false (the default) in its include rules: dbs2 then sends only what its"
            " users write"
        ],
    ),
    "an apply process tags with what users' tag means": (
        SITES
        + """
queues: {q1: {site: dbs1}, q2: {site: dbs2}, i1: {site: dbs1}, i2: {site: dbs2}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.*, tags: ["11"]}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{table: hr.*, tags: ["11"]}]}}
propagations: {p1: {from: q1, to: i2}, p2: {from: q2, to: i1}}
applies:
  a1: {site: dbs2, source: dbs1, queue: i2, tag: "11"}
  a2: {site: dbs1, source: dbs2, queue: i1, tag: "12"}
""",
        [
            "error: captures.c2.rules (line 11): changes of hr.* made at dbs1 in a transaction that its user tagged 11"
            " return there: dbs1 -> dbs2 "
            "(applied by a1 with tag 11) -> dbs1 (applied by a2): leave out what a1 wrote: exclude: [{global: true,"
            ' tags: ["11"]}]'
        ],
    ),
    "a hub sends on what spokes write and keeps back what its own users write": (
        HUB.replace("table: stock.*, tagged: true", "table: stock.*, not_tags: [null]"),
        [
            "warning: captures.capture_dbs1.rules (line 24): changes of stock.* made at dbs1 never arrive at {site},"
            " while those that dbs1 gets "
            "from others do: captures.capture_dbs1 does not take untagged changes: let its rules take untagged changes,"
            " too; no action is needed if this is intended".replace("{site}", site)
            for site in ("dbs2", "dbs3", "dbs4")
        ],
    ),
    "an apply process gets what users tag alone": (
        SITES
        + """
queues: {q1: {site: dbs1}, i2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.*, tags: ["11"]}]}}}
propagations: {p1: {from: q1, to: i2}}
applies: {a1: {site: dbs2, source: dbs1, queue: i2, rules: {include: [{table: hr.*, tagged: true}]}}}
""",
        [
            "warning: applies.a1.rules.include[0] (line 11): of hr.* only changes arrive that users of dbs1 tag"
            " themselves, on the way c1 -> q1 -> p1 "
            "-> i2 -> a1: let the rules on the way take untagged changes (tagged: false), or write here which tags are"
            " intended"
        ],
    ),
    "a queue from which nobody takes a table": (
        SITES
        + """
queues: {q1: {site: dbs1}, i2: {site: dbs2}}
captures: {c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{table: hr.a}, {table: hr.b}]}}}
propagations: {p1: {from: q1, to: i2}}
applies: {a1: {site: dbs2, source: dbs1, queue: i2, rules: {include: [{table: hr.a}]}}}
""",
        [
            "warning: queues.i2 (line 8): changes of hr.b made at dbs1 come to this queue, and no subscriber takes"
            " them: they end here: let a1 take them, or exclude them where they are captured"
        ],
    ),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG.keys())
def test_wrong_topology_has_the_expected_findings(tmp_path, text, expected):
    assert [line for line in findings(tmp_path, text)[1] if not any(words in line for words in USUAL)] == expected


# The fixes of the findings above, applied: no finding remains.
MENDED = {
    "a hub forgets to leave out what came from a spoke": (
        "dbs1_to_dbs2: {from: q_dbs1, to: q_dbs2_in}",
        'dbs1_to_dbs2: {from: q_dbs1, to: q_dbs2_in, rules: {exclude: [{global: true, tags: ["64627332"]}]}}',
    ),
    "a spoke has the tag of another": (
        'source: dbs3, queue: q_dbs1_in, tag: "64627332"',
        'source: dbs3, queue: q_dbs1_in, tag: "64627333"',
    ),
    "an apply process at a spoke takes untagged changes alone": (
        "queue: q_dbs2_in, rules: {include: [{table: stock.*}]}}",
        'queue: q_dbs2_in, rules: {include: [{table: stock.*, tags: [null, "64627333", "64627334"]}]}}',
    ),
    "a hub forwards nothing, and all write": (
        "source: dbs1, queue: q_dbs1, rules: {include: [{table: stock.*}]}",
        "source: dbs1, queue: q_dbs1, rules: {include: [{table: stock.*, tagged: true}]}",
    ),
    "a spoke captures what the hub wrote": (
        "queue: q_dbs3, rules: {include: [{table: stock.*, tagged: true}]}",
        "queue: q_dbs3, rules: {include: [{table: stock.*, tagged: false}]}",
    ),
    "an apply process at a spoke has no tag": ("queue: q_dbs2_in, tag: null}", 'queue: q_dbs2_in, tag: "00"}'),
    "one of many propagations leaves out a table": (", rules: {exclude: [{table: hr.salaries}]}}", "}"),
    "an apply process names a table that nobody captures": ("{table: stok.items, tagged: true}, ", ""),
    "a queue from which nobody takes a table": (
        "include: [{table: hr.a}]}}}\n",
        "include: [{table: hr.a}, {table: hr.b}]}}}\n",
    ),
}


@pytest.mark.parametrize(("name", "edit"), MENDED.items(), ids=MENDED.keys())
def test_printed_fix_removes_the_findings(tmp_path, name, edit):
    text, old = WRONG[name][0], edit[0]
    assert text.count(old) == 1
    assert [
        line for line in findings(tmp_path, text.replace(*edit))[1] if not any(words in line for words in USUAL)
    ] == []


def test_propagation_that_excludes_an_applys_table_is_found(tmp_path):
    text = HUB.replace(TO_DBS2, TO_DBS2.replace("]}}", "], exclude: [{table: stock.secret}]}}"))
    text = text.replace(
        AT_DBS2,
        "source: dbs1, queue: q_dbs2_in, rules: {include: [{table: stock.secret, tagged: true}, {table: stock.*,"
        " tagged: true}]}}",
    )
    lines = findings(tmp_path, text)[1]
    assert (
        "error: applies.apply_from_dbs1_at_dbs2.rules.include[0] (line 43): no change of stock.secret ever arrives on"
        " the way capture_dbs1 -> q_dbs1 -> dbs1_to_dbs2 -> q_dbs2_in -> apply_from_dbs1_at_dbs2:"
        " propagations.dbs1_to_dbs2 excludes it: take it out of propagations.dbs1_to_dbs2.rules.exclude, or out of the"
        " rules here"
    ) in lines


def test_plan_shows_the_reach_of_a_file_with_a_cycle(tmp_path):
    file = tmp_path / "t.yaml"
    file.write_text(HUB.replace(TO_DBS2, "{from: q_dbs1, to: q_dbs2_in}"))
    (line,) = (line for line in examine(file, {}).reach if line.origin == "dbs2" and "none" in line.tags)
    assert {(each.site, each.times) for each in line.reached} == {
        ("dbs1", "once"),
        ("dbs2", "once"),
        ("dbs3", "once"),
        ("dbs4", "once"),
    }
    assert [each.sites for each in line.reached if each.site == "dbs2"] == [("dbs2", "dbs1", "dbs2")]
