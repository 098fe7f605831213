"""The demo's own report, computed from its measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.console.output import Output
from headrace.demo.run import (
    TOPOLOGIES,
    DemoOptions,
    Outage,
    _Demo,
    _topology,
    progress_text,
    refuse_others_folder,
    summary_of,
    summary_text,
)
from headrace.lcr.table_name import TableName
from headrace.status.overview import Flow, Overview
from tests.support.actors.overviews import component_status
from tests.support.actors.probes import probe
from topology.edits.stored import PREPARED_FILE
from topology.links import makes_certificates
from topology.routing.ways import ways_to

KEYS = [  # the keys of the issue, in its order
    "identical",
    "transactions",
    "row_changes",
    "rows_per_s",
    "latency_p50_ms",
    "latency_p99_ms",
    "killed",
    "healed_s",
    "returned_changes",
    "duration_s",
]
LINE = 80  # a terminal's output as it opens
PREFIX = len("x demo [100 s]: ")  # a spinner with its duration


class Load:
    """A load that has ended."""

    rows_prepared = 2000

    def transactions_done(self) -> int:
        return 1000

    def row_changes(self) -> int:
        return 4000


def summary(*samples: tuple[float, float], identical: bool = True) -> dict[str, Any]:
    """The summary of a demo that saw `samples`, with something killed from second 5 to second 8."""
    measured = probe(*samples)
    measured.outage_began(5.0)
    outage = Outage("capture:c (process 7, SIGKILL)", killed_at=5.0, healed_s=3.004)
    return summary_of(
        Load(),
        measured,
        outage,
        identical=identical,
        returned_changes=3,
        drain_s=10.0,
        duration_s=44.44,
    )


def test_summary_has_the_promised_keys_and_the_measurements():
    told = summary((1.0, 1.1), (5.5, 8.0), (9.0, 9.1))
    assert list(told) == KEYS
    assert list(told.values()) == [
        True,
        1000,
        4000,
        200.0,
        100.0,
        100.0,
        "capture:c (process 7, SIGKILL)",
        3.0,
        3,
        44.4,
    ]


def test_rows_written_before_the_clock_began_are_no_throughput():
    told = summary((1.0, 1.1))
    assert told["row_changes"] == 4000
    assert told["rows_per_s"] == pytest.approx((4000 - 2000) / 10)


def test_unmeasured_latency_is_null_and_explained():
    told = summary((5.5, 8.0))
    assert (told["latency_p50_ms"], told["latency_p99_ms"]) == (None, None)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    text = summary_text(told, rate=400)
    assert "commit to visible: not measured" in text
    assert "nan" not in text.lower()


def test_summary_for_people_shows_how_it_ended():
    measured = ((1.0, 1.1), (9.0, 9.1))
    text = summary_text(summary(*measured), rate=400)
    assert "p50 100 ms, p99 100 ms" in text
    assert text.splitlines()[-1] == "identical, after 44 s"
    assert summary_text(summary(*measured, identical=False), rate=400).splitlines()[-1] == "DIFFERENT, after 44 s"


class Applies:
    """A deployment with its actors: each apply process has a count of returned changes."""

    def __init__(self, counted: dict[str, int]) -> None:
        self.counted = counted

    def connect(self) -> Applies:
        return self

    def call(self, name: str, method: str, **_: object) -> dict[str, Any]:
        assert method == "status"
        return {"name": name, "kind": "apply", "counters": {"returned_changes": self.counted[name]}}


def test_returned_changes_are_summed_over_all_sites():
    options = DemoOptions(topology="twoway")
    spec = _topology(options)
    deployment: Any = Applies({f"apply:{apply.name}": number for number, apply in enumerate(spec.applies, 3)})
    assert _Demo(options, Output(), spec, deployment, print)._returned_changes() == 3 + 4


@pytest.mark.parametrize(("topology", "form"), TOPOLOGIES.items(), ids=TOPOLOGIES.keys())
def test_every_form_writes_tables_that_its_example_replicates_everywhere(topology, form):
    spec = _topology(DemoOptions(topology=topology))
    sites = [site.name for site in spec.sites]
    table = TableName(form.schema or "public", "orders" if form.schema else "pgbench_accounts")
    for writer in sites[: form.writers]:
        reached, pending = {writer}, [(writer, None)]
        while pending:
            source, tag = pending.pop()
            for apply in (apply for apply in spec.applies if apply.source == source and apply.site not in reached):
                if any(way.carry(table, tag=tag) is not None for way in ways_to(spec, apply)):
                    reached.add(apply.site)
                    pending.append((apply.site, apply.tag))
        assert reached == set(sites)


def test_unknown_form_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="no demo of a topology 'ring'") as caught:
        _topology(DemoOptions(topology="ring"))
    assert "nway, hub, fanout" in caught.value.hint


def overview(*components: tuple[str, str], ways: tuple[tuple[str, str], ...] = (("dbs1", "dbs2"),)) -> Overview:
    flows = [
        Flow(apply="a", source=source, destination=destination, lag_s=0.34, applied_scn=0x1A2B3C4D, scn_gap=10)
        for source, destination in ways
    ]
    found = [
        component_status(name, state, **({"rows_per_s": 1600.0} if name == "apply:a" else {}))
        for name, state in components
    ]
    return Overview(topology="t", state="RUNNING", flows=tuple(flows), components=tuple(found))


def test_progress_has_numbers_of_every_flow_and_states_of_every_component():
    seen = overview(
        ("site:a", "WRITING"), ("site:b", "WRITING"), ("apply:a", "APPLYING"), ways=(("a", "b"), ("b", "a"))
    )
    assert progress_text(3200, 8000, seen, width=None) == (
        "3200/8000 tx, 1600 rows/s, a->b lag 0.3 s, SCN 0/1A2B3C4D, b->a lag 0.3 s, SCN 0/1A2B3C4D | site writing,"
        " apply applying"
    )


def test_progress_in_a_terminal_is_printed_in_whole_lines():
    components = [
        (f"{kind}:{kind}_from_dbs{n}", f"STATE {n}") for kind in ("site", "queue", "capture", "apply") for n in (1, 2)
    ]
    seen = overview(*components, ("apply:a", "IDLE"), ways=(("dbs1", "dbs2"), ("dbs2", "dbs1")))
    first, *others = progress_text(3200, 8000, seen, width=LINE).splitlines()
    assert first == "3200/8000 tx, 1600 rows/s, dbs1->dbs2 lag 0.3 s, SCN 0/1A2B3C4D"
    assert PREFIX + len(first) <= LINE
    assert others[0] == "  dbs2->dbs1 lag 0.3 s, SCN 0/1A2B3C4D"
    assert max(len(line) for line in others) <= LINE
    assert all(f"{name} {state.lower()}" in " ".join(line.strip() for line in others) for name, state in components)


def test_progress_names_the_component_with_a_different_state():
    seen = overview(("queue:q", "ENABLED"), ("queue:r", "UNREACHABLE"), ("apply:a", "IDLE"))
    assert progress_text(1, 2, seen, width=None).endswith(" | queue:q enabled, queue:r unreachable, apply idle !")


def test_unknown_lag_is_shown_as_unknown():
    seen = overview(("apply:a", "INITIALIZING"))
    seen = replace(seen, flows=(replace(seen.flows[0], lag_s=None, applied_scn=None),))
    assert "lag unknown, SCN unknown" in progress_text(1, 2, seen, width=None)


def test_folder_that_no_demo_made_is_not_removed(tmp_path: Path):
    """For example the `--state-dir` of a topology in production, even one that runs the demo's own file."""
    spec = _topology(DemoOptions(topology="oneway", state_dir=tmp_path / "state"))
    refuse_others_folder(spec)
    spec.state_dir.mkdir()
    refuse_others_folder(spec)
    (spec.state_dir / "notes.txt").touch()
    with pytest.raises(ConfigError, match="something that no demo made, and a demo removes all of it"):
        refuse_others_folder(spec)
    for file in ("/srv/production.yaml", str(spec.file)):
        (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"topology": "production", "file": file}))
        with pytest.raises(ConfigError, match="the state of topology production"):
            refuse_others_folder(spec)
    (spec.state_dir / "demo").touch()  # the remains of a killed demo
    refuse_others_folder(spec)
    (spec.state_dir / PREPARED_FILE).write_text(json.dumps({"topology": "production", "file": "/srv/production.yaml"}))
    with pytest.raises(ConfigError, match="the state of topology production"):
        refuse_others_folder(spec)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_certificates_of_a_demo_are_in_its_own_state_folder(tmp_path: Path, topology: str):
    spec = _topology(DemoOptions(topology=topology, state_dir=tmp_path / "state"))
    assert makes_certificates(spec)
    for site in spec.sites:
        assert site.tls is not None
        assert site.tls.key.is_relative_to(spec.state_dir)
