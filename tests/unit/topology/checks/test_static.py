"""Checks of a whole topology: each test plants one problem and asserts its text."""

from __future__ import annotations

import pytest

from tests.support.topologies.files import SITES, findings, problems, read
from topology.checks.static import check
from topology.file.reading import read_topology
from topology.problems import as_line

CHAIN = (
    SITES
    + """
queues:
  q1: {site: dbs1}
  qr: {site: relay}
  q2: {site: dbs2}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}
propagations:
  p1: {from: q1, to: qr}
  p2: {from: qr, to: q2}
applies:
  a1: {site: dbs2, source: dbs1, queue: q2}
"""
)


def test_chain_over_an_intermediate_site_has_no_findings(tmp_path):
    spec = read(tmp_path, CHAIN)
    assert [propagation.sources for propagation in spec.propagations] == [("dbs1",), ("dbs1",)]
    assert [as_line(finding) for finding in check(spec)] == [
        "sites.dbs3: takes part in nothing: name it under replicate, or remove it"
    ]


def test_site_in_an_invalid_replicate_entry_is_not_reported_as_unused(tmp_path):
    entries = "replicate:\n  - {schemas: [hr], from: dbs1, to: [dbs2]}\n"
    assert [line.partition(": takes part in nothing")[0] for line in findings(tmp_path, SITES + entries)[1]] == [
        "warning: sites.dbs3 (line 5)",
        "warning: sites.relay (line 6)",
    ]
    (wrong,) = findings(tmp_path, SITES + entries.replace("from:", "frm:"))[1]
    assert "did you mean 'from'" in wrong


PLANTED = {
    "unknown site of a queue": (
        "q1: {site: dbs1}",
        "q1: {site: dsb1}",
        ["queues.q1.site (line 9): there is no site 'dsb1': did you mean 'dbs1'?"],
    ),
    "unknown queue of a capture": (
        "queue: q1, rules",
        "queue: queue, rules",
        ["captures.c1.queue (line 13): there is no queue 'queue': known here: q1, q2, qr"],
    ),
    "unknown queue of a propagation": (
        "from: qr",
        "from: qx",
        ["propagations.p2.from (line 16): there is no queue 'qx': known here: q1, q2, qr"],
    ),
    "unknown source of an apply": (
        "{site: dbs2, source: dbs1",
        "{site: dbs2, source: other",
        ["applies.a1.source (line 18): there is no site 'other': known here: dbs1, dbs2, dbs3, relay"],
    ),
    "capture into another site's queue": (
        "queue: q1, rules",
        "queue: q2, rules",
        [
            "captures.c1.queue (line 13): queue q2 is at site dbs2, not at dbs1: name a queue of dbs1, and propagate"
            " between the two"
        ],
    ),
    "apply from another site's queue": (
        "source: dbs1, queue: q2",
        "source: dbs1, queue: qr",
        [
            "applies.a1.queue (line 18): queue qr is at site relay, not at dbs2: name a queue of dbs2, and propagate"
            " between the two"
        ],
    ),
    "capture from a site without a database": (
        "{site: dbs1, source: dbs1, queue: q1",
        "{site: relay, source: relay, queue: qr",
        [
            "captures.c1.source (line 13): site relay has no database to capture from: name another site, or give relay a "
            "database of kind postgres or embedded"
        ],
    ),
    "apply to a site without a database": (
        "{site: dbs2, source: dbs1, queue: q2",
        "{site: relay, source: dbs1, queue: qr",
        [
            "applies.a1.site (line 18): site relay has no database to apply to: name another site, or give relay a"
            " database of kind postgres or embedded"
        ],
    ),
    "propagation to itself": (
        "from: q1, to: qr",
        "from: q1, to: q1",
        [
            "propagations.p1.to (line 15): propagates queue q1 to itself: name another queue, or leave the propagation"
            " out: an apply process can dequeue directly"
        ],
    ),
    "apply of the site's own changes": (
        "{site: dbs2, source: dbs1",
        "{site: dbs2, source: dbs2",
        [
            "applies.a1.source (line 18): applies the changes of dbs2 to dbs2 itself: name the site the changes come"
            " from"
        ],
    ),
    "unreachable apply": (
        "  p2: {from: qr, to: q2}\n",
        "",
        [
            "applies.a1 (line 17): no LCR of dbs1 ever reaches queue q2: add a capture of dbs1, and propagations from"
            " its queue to q2"
        ],
    ),
    "two ways to one apply": (
        "  p2: {from: qr, to: q2}\n",
        "  p2: {from: qr, to: q2}\n  p3: {from: qr, to: q2}\n",
        [
            "propagations.p3 (line 17): feeds queue q2 with the LCRs of dbs1, and so does propagations.p2: keep one of"
            " them, or give it a queue of its own"
        ],
    ),
    "two captures of one source into one queue": (
        "propagations:\n",
        "  c2: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: crm}]}}\npropagations:\n",
        [
            "captures.c2 (line 14): feeds queue q1 with the LCRs of dbs1, and so does captures.c1: keep one of them, or"
            " give it a queue of its own"
        ],
    ),
    "two applies of the same changes": (
        "applies:\n",
        "applies:\n  a0: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{schema: h*}]}}\n",
        [
            "applies.a1 (line 19): applies.a0 applies the same changes of dbs1 to dbs2, such as those of hr.*: keep one"
            " of them, or let their rules include different tables"
        ],
    ),
    "one name for two components": (
        "  p1: {from",
        "  c1: {from",
        [
            "propagations.c1 (line 15): captures.c1 has the same name: rename one: `start` and `stop` know components"
            " by name alone (c1)"
        ],
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), PLANTED.values(), ids=PLANTED.keys())
def test_planted_problem_is_found(tmp_path, old, new, expected):
    assert CHAIN.count(old) == 1
    assert sorted(problems(tmp_path, CHAIN.replace(old, new))) == sorted(expected)


def test_applies_of_one_source_at_one_site_may_take_different_tables(tmp_path):
    text = CHAIN.replace("queue: q2}", "queue: q2, rules: {include: [{table: hr.a*}]}}")
    text += "  a2: {site: dbs2, source: dbs1, queue: q2, rules: {include: [{table: hr.b*}]}}\n"
    assert read(tmp_path, text).subscribers("q2") == ("a1", "a2")


def test_two_sites_with_one_database_are_refused(tmp_path):
    text = """
        topology: t
        sites:
          a: {database: {kind: postgres, dsn: "${A}"}}
          b: {database: {kind: postgres, dsn: "${B}"}}
        """
    assert problems(tmp_path, text, {"A": "host=h dbname=d", "B": "host=h dbname=d"}) == [
        "sites.b.database.dsn (line 4): is the database of site a: one database is one site: name another database, or"
        " use one site"
    ]


def test_lcrs_take_the_shortest_way_over_shared_queues(tmp_path):
    """The manuals' n-way topology with one queue per site: every queue holds LCRs of all sources, none is forwarded."""
    sites = ("dbs1", "dbs2", "dbs3")
    pairs = [(a, b) for a in sites for b in sites if a != b]
    text = SITES + "queues:\n" + "".join(f"  q_{site}: {{site: {site}}}\n" for site in sites)
    text += "captures:\n" + "".join(
        f"  c_{s}: {{site: {s}, source: {s}, queue: q_{s}, rules: {{include: [{{schema: hr}}]}}}}\n" for s in sites
    )
    text += "propagations:\n" + "".join(f"  {a}_to_{b}: {{from: q_{a}, to: q_{b}}}\n" for a, b in pairs)
    text += "applies:\n" + "".join(f"  a_{a}_{b}: {{site: {b}, source: {a}, queue: q_{b}}}\n" for a, b in pairs)
    spec = read(tmp_path, text)
    assert {p.name: p.sources for p in spec.propagations} == {f"{a}_to_{b}": (a,) for a, b in pairs}


TWO_WAY = (
    SITES
    + """
queues: {q1: {site: dbs1}, q1_in: {site: dbs1}, q2: {site: dbs2}, q2_in: {site: dbs2}}
captures:
  c1: {site: dbs1, source: dbs1, queue: q1, rules: {include: [{schema: hr}]}}
  c2: {site: dbs2, source: dbs2, queue: q2, rules: {include: [{schema: hr}]}}
propagations: {p1: {from: q1, to: q2_in}, p2: {from: q2, to: q1_in}}
applies: {a1: {site: dbs2, source: dbs1, queue: q2_in}, a2: {site: dbs1, source: dbs2, queue: q1_in}}
"""
)


def warnings(tmp_path, text: str) -> list[str]:
    """Return warnings and errors, without the findings that every topology of these tests has."""
    usual = ("takes part in nothing", "no conflict handler")
    return [line for line in findings(tmp_path, text)[1] if not any(words in line for words in usual)]


def test_two_way_topology_of_untagged_captures_has_no_warning(tmp_path):
    assert warnings(tmp_path, TWO_WAY) == []


HOME = "changes of hr.* made at dbs1 return there: dbs1 -> dbs2 (applied by a1 with tag 00) -> dbs1 (applied by a2): "


def test_tagged_capture_in_a_two_way_topology_is_refused_with_the_path(tmp_path):
    text = TWO_WAY.replace(
        "queue: q2, rules: {include: [{schema: hr}]}", "queue: q2, rules: {include: [{schema: hr, tagged: true}]}"
    )
    assert warnings(tmp_path, text) == [
        f"error: captures.c2.rules (line 11): {HOME}write tagged: false (the default) in its include rules: dbs2 then"
        " sends only what its users write"
    ]


def test_capture_without_a_positive_rule_set_takes_tagged_changes(tmp_path):
    text = TWO_WAY.replace(
        "queue: q2, rules: {include: [{schema: hr}]}", "queue: q2, rules: {exclude: [{schema: tmp}]}"
    )
    assert warnings(tmp_path, text) == [
        f'error: captures.c2.rules (line 11): {HOME}leave out what a1 wrote: exclude: [{{global: true, tags: ["00"]}}]'
    ]


def test_tagged_capture_of_other_tables_is_no_cycle(tmp_path):
    text = TWO_WAY.replace(
        "queue: q2, rules: {include: [{schema: hr}]}",
        "queue: q2, rules: {include: [{schema: hr}, {schema: crm, tagged: true}]}",
    )
    assert warnings(tmp_path, text) == []


def ring(tag: str) -> str:
    ring = [("dbs1", "dbs2"), ("dbs2", "dbs3"), ("dbs3", "dbs1")]
    text = SITES + "queues:\n" + "".join(f"  q_{a}: {{site: {a}}}\n  i_{a}: {{site: {a}}}\n" for a, _ in ring)
    text += "captures:\n" + "".join(
        f"  c_{a}: {{site: {a}, source: {a}, queue: q_{a}, rules: {{include: [{{schema: hr, tagged: true}}]}}}}\n"
        for a, _ in ring
    )
    text += "propagations:\n" + "".join(f"  p_{a}: {{from: q_{a}, to: i_{b}}}\n" for a, b in ring)
    return (
        text
        + "applies:\n"
        + "".join(f"  a_{a}: {{site: {b}, source: {a}, queue: i_{b}, tag: {tag}}}\n" for a, b in ring)
    )


def test_ring_of_tagged_captures_is_one_cycle_with_the_whole_path(tmp_path):
    assert warnings(tmp_path, ring('"00"')) == [
        "error: captures.c_dbs3.rules (line 17): changes of hr.* made at dbs1 circulate for ever: dbs1 -> dbs2 (applied"
        " by a_dbs1 with tag 00) -> "
        "dbs3 (applied by a_dbs2 with tag 00) -> dbs1 (applied by a_dbs3), and so on: write tagged: false (the"
        " default) in its include rules: dbs3 then sends only what its users write"
    ]


def test_ring_of_untagged_applies_is_advised_to_tag_and_exclude(tmp_path):
    (line,) = warnings(tmp_path, ring("null"))
    assert line.startswith("error: applies.a_dbs1.tag (line 23): changes of hr.* made at dbs1 circulate for ever: ")
    assert line.endswith(
        ': give it a tag, such as tag: "00", and leave that tag out at captures.c_dbs2: exclude: [{global: true, tags:'
        ' ["00"]}]'
    )


def test_allowed_cycle_is_a_warning(tmp_path):
    (line,) = warnings(tmp_path, "allow_cycle: true" + ring('"00"'))
    assert line.startswith(
        "warning: captures.c_dbs3.rules (line 18): changes of hr.* made at dbs1 circulate for ever: "
    )


def test_tagged_changes_arriving_by_two_ways_are_refused_with_both(tmp_path):
    text = (
        SITES + "replicate: [{schemas: [hr], from: dbs1, to: [dbs2, dbs3]}, {schemas: [hr], from: dbs2, to: [dbs3]}]\n"
    )
    text += (
        "captures: {capture_dbs2: {site: dbs2, source: dbs2, queue: q_dbs2, rules: {include: [{schema: hr,"
        " tagged: true}]}}}"
    )
    assert warnings(tmp_path, text) == [
        "error: captures.capture_dbs2.rules (line 8): changes of hr.* made at dbs1 arrive at dbs3 twice: dbs1 -> dbs3"
        " (applied by "
        "apply_from_dbs1_at_dbs3); and dbs1 -> dbs2 (applied by apply_from_dbs1_at_dbs2 with tag 00) -> dbs3 (applied"
        " by "
        "apply_from_dbs2_at_dbs3): write tagged: false (the default) in its include rules: dbs2 then sends only what"
        " its users write"
    ]


def hub(back_to: str) -> str:
    """A hub with two spokes that captures everything; `back_to`: the rules of the propagation from the hub to dbs2."""
    spokes = {"dbs2": "02", "dbs3": "03"}
    text = SITES + "queues:\n" + "".join(f"  q_{s}: {{site: {s}}}\n  i_{s}: {{site: {s}}}\n" for s in ("dbs1", *spokes))
    text += (
        "captures:\n  c_dbs1: {site: dbs1, source: dbs1, queue: q_dbs1, rules: {include: [{schema: hr, tagged:"
        " true}]}}\n"
    )
    text += "".join(
        f"  c_{s}: {{site: {s}, source: {s}, queue: q_{s}, rules: {{include: [{{schema: hr}}]}}}}\n" for s in spokes
    )
    text += "propagations:\n" + "".join(f"  up_{s}: {{from: q_{s}, to: i_dbs1}}\n" for s in spokes)
    text += f"  down_dbs2: {{from: q_dbs1, to: i_dbs2, rules: {{{back_to}}}}}\n"
    text += '  down_dbs3: {from: q_dbs1, to: i_dbs3, rules: {exclude: [{schema: hr, tags: ["03"]}]}}\n'
    text += "applies:\n" + "".join(
        f'  up_from_{s}: {{site: dbs1, source: {s}, queue: i_dbs1, tag: "{t}"}}\n' for s, t in spokes.items()
    )
    return text + "".join(f"  down_to_{s}: {{site: {s}, source: dbs1, queue: i_{s}}}\n" for s in spokes)


@pytest.mark.parametrize(
    "back_to", ['include: [{schema: hr, not_tags: ["02"]}]', 'exclude: [{schema: hr, tags: ["02"]}]']
)
def test_hub_that_forwards_changes_between_spokes_has_no_warning(tmp_path, back_to):
    assert warnings(tmp_path, hub(back_to)) == []


HOME_FROM_HUB = (
    "error: propagations.down_dbs2.rules (line 21): changes of hr.* made at dbs2 return there: dbs2 -> dbs1 (applied by"
    " up_from_dbs2 with tag 02) "
    '-> dbs2 (applied by down_to_dbs2): leave out what up_from_dbs2 wrote: exclude: [{global: true, tags: ["02"]}]'
)
LOST_AT_HUB = (
    "error: propagations.down_dbs2.rules (line 21): changes of hr.* made at dbs3 never arrive at dbs2: dbs3 -> dbs1"
    " (applied by up_from_dbs3 "
    "with tag 03), and propagations.down_dbs2 does not take tag 03 on to dbs2; both write these tables, which become"
    " different: let its "
    'rules take tag "03", or replicate from dbs3 to dbs2 without dbs1 between'
)


@pytest.mark.parametrize(
    ("back_to", "expected"),
    [
        ("", [HOME_FROM_HUB]),
        ('exclude: [{schema: hr, tags: ["03"]}]', [HOME_FROM_HUB, LOST_AT_HUB]),
        ('include: [{schema: hr, not_tags: ["03"]}]', [HOME_FROM_HUB, LOST_AT_HUB]),
    ],
)
def test_hub_that_echoes_or_withholds_spoke_changes_is_refused(tmp_path, back_to, expected):
    assert warnings(tmp_path, hub(back_to)) == expected


def test_untagged_apply_with_returning_changes_is_advised_to_set_a_tag(tmp_path):
    text = TWO_WAY.replace(
        "a1: {site: dbs2, source: dbs1, queue: q2_in}", "a1: {site: dbs2, source: dbs1, queue: q2_in, tag: null}"
    )
    assert warnings(tmp_path, text) == [
        "error: applies.a1.tag (line 13): "
        + HOME.replace("with tag 00", "without a tag")
        + 'give it a tag, such as tag: "00"'
    ]


MEETING = "where they change one row at the same time, the whole later transaction goes into the error queue of "
MEETINGS = {
    # entry of `replicate` -> writing sites, tables, sites of conflicts
    "{schemas: [hr], between: [dbs1, dbs2]}": [("dbs1 and dbs2", "hr.*", "dbs2, dbs1")],
    "{schemas: [hr], hub: dbs1, spokes: [dbs2, dbs3]}": [("dbs1 and dbs2 and dbs3", "hr.*", "dbs1, dbs2, dbs3")],
    "{schemas: [hr], from: dbs1, to: [dbs2, dbs3]}": [],
    "{schemas: [hr], from: dbs1, to: [dbs3]}, {tables: [hr.t], from: dbs2, to: [dbs3]}": [
        ("dbs1 and dbs2", "hr.t", "dbs3")
    ],
    "{schemas: [hr], from: dbs1, to: [dbs3]}, {schemas: [crm], from: dbs2, to: [dbs3]}": [],
}


@pytest.mark.parametrize(("entries", "expected"), MEETINGS.items(), ids=MEETINGS.keys())
def test_tables_written_by_several_sites_without_handlers_are_a_warning(tmp_path, entries, expected):
    found = [
        finding
        for finding in check(read(tmp_path, SITES + f"replicate: [{entries}]"))
        if "no conflict handler" in finding.problem
    ]
    assert not any(finding.is_error for finding in found)
    lines = [as_line(finding).partition(": let each")[0] for finding in found]
    for line, (origins, table, sites) in zip(lines, expected, strict=True):
        head, _, places = line.partition(MEETING)
        assert head == f"sites: {origins} write the same tables, such as {table}, and no conflict handler is set: "
        places, _, silent = places.partition(", where old values are in the log (REPLICA IDENTITY FULL); ")
        assert set(places.split(", ")) == set(sites.split(", "))
        assert silent == "where they are not, it goes unnoticed, and the sites differ"


IDLE = {
    "queue nobody reads": (
        "  q2: {site: dbs2}",
        "  q2: {site: dbs2}\n  q9: {site: dbs3}",
        "queues.q9: no client dequeues from it: add a propagation or an apply process, or remove it",
    ),
    "propagation for nobody": (
        "  p2: {from",
        "  p9: {from: q2, to: qr}\n  p2: {from",
        "propagations.p9: no apply process behind it takes anything that it could forward: add an apply "
        "process behind queue qr, or remove it",
    ),
    "empty positive rule set": (
        "queue: q2}",
        "queue: q2, rules: {include: []}}",
        "applies.a1.rules.include: is empty: nothing passes: add a rule, or remove include",
    ),
    "rules on one way that no change passes": (
        "p1: {from: q1, to: qr}",
        "p1: {from: q1, to: qr, rules: {include: [{schema: crm}]}}",
        "applies.a1: no change passes all the rules on the way c1 -> q1 -> p1 -> qr -> p2 -> q2 -> a1: compare the"
        " rules of these components",
    ),
}


@pytest.mark.parametrize(("old", "new", "expected"), IDLE.values(), ids=IDLE.keys())
def test_unused_part_is_a_warning(tmp_path, old, new, expected):
    assert CHAIN.count(old) == 1
    findings = check(read(tmp_path, CHAIN.replace(old, new)))
    assert expected in [as_line(finding) for finding in findings]
    assert not any(finding.is_error for finding in findings)


def test_capture_process_in_the_file_that_takes_less_than_replicate_promises_is_named(tmp_path):
    file = tmp_path / "topology.yaml"
    file.write_text(
        """
topology: erp
sites: {db1: {database: {kind: embedded}}, db2: {database: {kind: embedded}}}
replicate:
  - {schemas: [sales], from: db1, to: [db2]}
  - {schemas: [shop], between: [db1, db2]}
captures:
  capture_db1: {site: db1, source: db1, queue: q_db1, rules: {include: [{schema: sales}]}}
"""
    )
    (found,) = [each for each in check(read_topology(file)) if "ever comes to" in each.problem]
    assert (found.path, found.problem) == (
        "propagations.db1_to_db2.rules.include[1]",
        "no change of shop.* ever comes to propagation db1_to_db2: captures.capture_db1 does not take it",
    )
