"""Chaos on a hub with two spokes, all of which write: real servers, Ray and Spark, and the faults of `headrace chaos`.

What replicates is that of the example with one spoke less, as the third is like the second. Before and after each
scenario everything is healthy; during it, clients write at all sites. `make test` has each kind of fault that no
other topology meets; `make soak` has the rest, each in another place.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from headrace.chaos.faults import action_of
from headrace.chaos.load import LOG_TABLE, ROWS_TABLE, SiteLoad, first_number, make_tables
from headrace.chaos.run import Chaos, Options, chaotic, keep_in_force
from headrace.chaos.schedule import Planned
from headrace.console.exit_codes import DONE, INTERRUPTED
from headrace.faults.links import links_of
from headrace.faults.processes import is_stopped
from tests.support.clusters.sites import Sites
from tests.support.clusters.system import HEALED_S, wait_until
from tests.support.session.matrices import cases
from topology.edits.changes import components_of
from topology.spec import TopologySpec

pytestmark = [pytest.mark.unit("sites", order=8), pytest.mark.cluster, pytest.mark.postgres, pytest.mark.slow]

EXAMPLE = Path(__file__).parents[2] / "examples" / "hub_and_spoke.yaml"
SCHEMA = "stock"
HUB, SPOKE, OTHER = SITES = ("a", "b", "c")
TABLES = (f"{SCHEMA}.{ROWS_TABLE}", f"{SCHEMA}.{LOG_TABLE}")
A_WHILE_S = 3.0  # seconds in force: several vain tries
WRITTEN_MIN = 3  # transactions of each site except the target: the fault hit a working topology

Target = Callable[[TopologySpec], str]


def component(kind: str, site: str, source: str = "") -> Target:
    """Return the first component of a kind at a site; of apply processes, the one for a source."""

    def find(spec: TopologySpec) -> str:
        names = [each.name for each in components_of(spec) if (each.kind, each.site) == (kind, site)]
        return next(name for name in names if not source or spec.apply(name.partition(":")[2]).source == source)

    return find


def apply(site: str, source: str) -> Target:
    return lambda spec: component("apply", site, source)(spec).partition(":")[2]


def link(site: str, other: str) -> Target:
    """Return the link by which changes go from one site to another: a propagation's, or a combined apply process's."""
    return lambda spec: next(
        each.name
        for each in links_of(spec)
        if (each.site, each.server_site, each.server[:6]) in {(site, other, "queue:"), (other, site, "captur")}
    )


def at(name: str) -> Target:
    return lambda _: name


SCENARIOS: dict[str, tuple[str, Target, float]] = {
    "the hub's server loses power": ("database down", at(HUB), 0.0),
    "a spoke's apply process stands still": ("frozen", component("apply", SPOKE, HUB), A_WHILE_S),
    "a spoke's server hangs": ("database frozen", at(OTHER), A_WHILE_S),
    "a spoke is parted from all others": ("parted", at(OTHER), A_WHILE_S),
    "the link from a spoke to the hub is slow": ("delayed", link(SPOKE, HUB), A_WHILE_S),
}
# Kinds of faults that the one-way tests have in other places.
ELSEWHERE: dict[str, tuple[str, Target, float]] = {
    "the hub's log writer is killed": ("kill site", component("site", HUB), 0.0),
    "the hub's capture process is killed": ("kill capture", component("capture", HUB), 0.0),
    "a spoke's queues and propagations are killed": ("kill queue", component("queue", SPOKE), 0.0),
    "an apply process of the hub is killed": ("kill apply", component("apply", HUB, OTHER), 0.0),
    "an apply server of a spoke is killed": ("task killed", apply(OTHER, HUB), 0.0),
    "the link from the hub to a spoke is cut": ("cut", link(HUB, SPOKE), A_WHILE_S),
    "the link from a spoke to the hub is half-open": ("half-open", link(OTHER, HUB), A_WHILE_S),
    "the hub's disk is full": ("disk full", at(HUB), A_WHILE_S),
}


# They overlap: during the partition of a spoke, the capture process of the other one and the hub's server die.
AT_ONCE: tuple[tuple[str, Target], ...] = (
    ("parted", at(OTHER)),
    ("kill capture", component("capture", SPOKE)),
    ("database down", at(HUB)),
)


def of_the_example() -> str:
    """Return what the example replicates, between these sites and with one spoke less."""
    _, found, text = EXAMPLE.read_text().partition("\nreplicate:\n")
    assert found
    assert text.count(", dbs4") == 1
    text = text.replace(", dbs4", "")
    for number, site in enumerate(SITES, start=1):
        text = re.sub(rf"\bdbs{number}\b", site, text)
    return f"{found.lstrip()}{text}"


@pytest.fixture
def hub(sites: Sites) -> Sites:
    """The topology with this file; the first test brings it there."""
    system = sites.by(of_the_example(), sites=SITES)
    if not re.search(rf"\b{SCHEMA}\b", repr(sites.last[0].spec)):
        for site in SITES:
            make_tables(system.servers[site].dsn(), SCHEMA)
        system.up()
    return system


def assert_identical(hub: Sites) -> None:
    """Assert that everything is applied, all error queues are empty, and all sites have the same rows."""
    hub.wait_caught_up()
    for each in hub.spec.applies:
        assert hub.call(f"apply:{each.name}", "errors") == []
    for table in TABLES:
        assert len({hub.digest(site, table) for site in SITES}) == 1, table


# --------------------------------------------------------------------------- the command


def command(hub: Sites, *arguments: str) -> list[str]:
    return [str(Path(sys.executable).parent / "headrace"), "chaos", str(hub.file), *arguments]


@pytest.mark.fault("the faults of a seed")
def test_command_injects_its_seeds_faults_and_reports_that_all_healed(hub: Sites):
    # its first fault kills a capture process
    arguments = ("--for", "1s", "--seed", "7", "--faults", "crash", "--load", "--json")
    done = subprocess.run(command(hub, *arguments), capture_output=True, text=True, timeout=2 * HEALED_S, check=False)
    assert done.returncode == DONE, done.stderr + done.stdout
    report = json.loads(done.stdout, parse_constant=pytest.fail)
    planned = json.loads(
        subprocess.run(command(hub, *arguments, "--dry-run"), capture_output=True, text=True, check=True).stdout
    )["faults"]
    assert report["fine"]
    assert report["identical"]
    assert report["faults"]
    for fault, expected in zip(report["faults"], planned, strict=False):
        assert (fault["action"], fault["target"]) == (expected["action"], expected["target"])
        assert fault["evidence"]
        assert fault["healed_s"] > 0
    assert report["written"] > 0
    assert report["violated"] == []
    assert all(count > 0 for count in report["checked"].values())
    assert {(table["owner"], table["name"]) for table in report["tables"]} == {
        (SCHEMA, ROWS_TABLE),
        (SCHEMA, LOG_TABLE),
    }


def _errors_at_end(started: subprocess.Popen[str]) -> str:
    """Return its standard error when it has ended; a process that does not end must dump its threads."""
    try:
        return started.communicate(timeout=HEALED_S)[1]
    except subprocess.TimeoutExpired:
        started.send_signal(signal.SIGABRT)
        return pytest.fail(f"chaos did not end within {HEALED_S} s:\n{started.communicate()[1]}")


@pytest.mark.fault("SIGINT and SIGKILL of headrace chaos itself, while a process stands still")
@pytest.mark.parametrize("how", cases({"SIGINT": signal.SIGINT, "SIGKILL": signal.SIGKILL}, core=["SIGKILL"]))
def test_what_chaos_had_stopped_goes_on_when_chaos_ends(hub: Sites, how: signal.Signals):
    """Ctrl-C undoes the faults at once; after a SIGKILL the next run does it first."""
    remembered = hub.deployment.spec.state_dir / "chaos.json"
    started = subprocess.Popen(
        command(hub, "--for", "1h", "--seed", "3", "--faults", "freeze"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONFAULTHANDLER": "1"},
    )

    def standing_still() -> list[psutil.Process]:
        try:
            processes = [psutil.Process(each["pid"]) for each in json.loads(remembered.read_text())["frozen"]]
            return processes if any(map(is_stopped, processes)) else []
        except (OSError, psutil.Error):
            return []  # not yet or no longer; the next call answers

    try:
        frozen = wait_until("something stands still", standing_still)
        os.kill(started.pid, how)
        errors = _errors_at_end(started)
    finally:
        started.kill()
        started.wait()
    if how is signal.SIGINT:
        assert started.returncode == INTERRUPTED, errors
    else:
        assert any(map(is_stopped, frozen))
        with chaotic(hub.deployment, Options(seed=0, seconds=1.0), lambda _: None):
            pass
    assert not any(map(is_stopped, frozen))
    assert not remembered.exists()
    hub.wait_overview()
    assert_identical(hub)


# --------------------------------------------------------------------------- faults by name


@pytest.fixture(scope="module")
def chaos_of() -> Iterator[Callable[[Sites], Chaos]]:
    """Return a function that returns chaos on the topology, with proxies in the links and no faults yet.

    It keeps other runs of chaos out until the module ends, or the topology if a test breaks that.
    """
    with ExitStack() as stack:
        made: list[tuple[object, Chaos]] = []

        def of(hub: Sites) -> Chaos:
            if not made or made[-1][0] is not hub.last:  # `last` belongs to one start of the topology
                stack.close()
                chaos = stack.enter_context(chaotic(hub.deployment, Options(seed=0, seconds=1.0), lambda _: None))
                chaos.begin()
                assert chaos.report.unlinked == []
                made.append((hub.last, chaos))
            return made[-1][1]

        yield of


@pytest.fixture
def chaos(hub: Sites, chaos_of: Callable[[Sites], Chaos]) -> Chaos:
    return chaos_of(hub)


@contextlib.contextmanager
def written_everywhere(hub: Sites) -> Iterator[list[SiteLoad]]:
    """Let clients write at every site before, during and after the block."""
    with ExitStack() as stack:
        loads = []
        for site in SITES:
            dsn = hub.servers[site].dsn()
            loads.append(SiteLoad(site, dsn, SCHEMA, first_number(dsn, SCHEMA, site)))
            stack.callback(loads[-1].end)
        wait_until("everybody writes", lambda: all(len(load.acknowledged) >= WRITTEN_MIN for load in loads))
        yield loads
        written = [len(load.acknowledged) for load in loads]
        wait_until(
            "everybody writes again",
            lambda: all(
                len(load.acknowledged) >= before + WRITTEN_MIN for load, before in zip(loads, written, strict=True)
            ),
        )


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(
            name,
            marks=[
                pytest.mark.fault(f"chaos: {action}", kind=action_of(action).kind),
                *([pytest.mark.soak] if name in ELSEWHERE else []),
            ],
        )
        for name, (action, _, _) in {**SCENARIOS, **ELSEWHERE}.items()
    ],
)
def test_nothing_is_lost_or_doubled_when(scenario: str, hub: Sites, chaos: Chaos):
    action, target, seconds = {**SCENARIOS, **ELSEWHERE}[scenario]
    looked_at, violated_before = dict(chaos.invariants.checked), len(chaos.invariants.violated)
    with written_everywhere(hub) as loads:
        chaos.one(Planned(number=1, action=action, target=target(hub.spec), seconds=seconds, pause_s=0.0))
    fired = chaos.report.faults[-1]
    assert fired.evidence, fired.problem
    assert fired.unhealed == ""
    assert fired.healed_s is not None
    assert chaos.invariants.violated[violated_before:] == []
    not_looked_at = [name for name, count in chaos.invariants.checked.items() if count <= looked_at.get(name, 0)]
    assert not_looked_at == [], "what must hold was not looked at"
    assert_identical(hub)
    assert [problem for load in loads for problem in load.problems()] == []
    print(f"{scenario}: {fired.evidence}; healed after {fired.healed_s:g} s")


@pytest.mark.soak
@pytest.mark.fault("a site that is parted, a killed capture process and a database that loses power, all at once")
def test_nothing_is_lost_or_doubled_when_several_things_break_at_once(hub: Sites, chaos: Chaos):
    violated_before = len(chaos.invariants.violated)
    parted, *_ = faults = [action_of(action).make(chaos.ground, target(hub.spec)) for action, target in AT_ONCE]
    with written_everywhere(hub) as loads:
        try:
            for fault in faults:
                fault.fire()
            keep_in_force(parted, A_WHILE_S, chaos._look)
        finally:
            for fault in faults:
                fault.undo()
            chaos.ground.in_force.undo()
        for fault in faults:
            wait_until(
                f"{fault.target} has healed", lambda fault=fault: chaos._look() is not None and not fault.missing()
            )
    assert [fault.target for fault in faults if not fault.evidence] == []
    hub.wait_overview()
    assert chaos.invariants.violated[violated_before:] == []
    assert_identical(hub)
    assert [problem for load in loads for problem in load.problems()] == []


def test_every_link_of_the_hub_and_its_spokes_has_tls(hub: Sites):
    wires = {each["name"]: each["wire"]["tls"] for each in hub.wait_overview()["components"] if "wire" in each}
    assert wires
    assert {name for name, has_tls in wires.items() if not has_tls} == set()


def test_the_links_are_direct_again_behind_chaos(hub: Sites, chaos: Chaos):
    """The last test of chaos."""
    chaos.close()
    assert_identical(hub)
