"""Whole topologies under random harm: nothing lost, nothing twice, in order, watermarks that hold, and convergence.

Every example once, for a moment; and as many seeds as fit into HEADRACE_SIMULATION_SECONDS of processor time. The quick gate has always the same
seeds: what it says depends on the code alone. With HEADRACE_SIMULATION_SECONDS they are new ones each time. Each is printed with
the command that replays it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from rules.subsetting import migrated
from simulation.faults import EVERY_FAULT
from simulation.run import Outcome, Settings, simulate
from streams.errors import ConfigError
from streams.failpoints import FAILPOINTS
from streams.lcr_batch import Command
from topology.file.reading import read_topology
from topology.spec import TopologySpec

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REFUSED = {
    "archived_logs": "capture of archived logs is not simulated yet", "handlers": "handlers are not simulated",
}
EXAMPLES = sorted({path.stem for path in (ROOT / "examples").glob("*.yaml")} - set(REFUSED))
SIX = ("one_way", "two_way", "n_way", "hub_and_spoke", "relay", "several_sources")
SECONDS = float(os.environ.get("HEADRACE_SIMULATION_SECONDS", "0"))
SEEDS_FOR_EVERYTHING = 60  # by then all was done and seen, nearly always
SEEDS_MAX = 150  # by then always
MOMENT_S = 6.0  # virtual: enough that every component works, and a few die
FIXED_SEED = 1
HARM_MIN = 5  # things that break in one run, at least; a hundred are usual
SEEDS_FOR_HARM = 4  # a random seed of a small topology may break nearly nothing in a moment (3742243604 of keys: 2); then another one must

# Executing errors needs conflicts, which these histories have none of: see the tests of the apply engine.
NEVER = {"apply.error_queue_write", "apply.execute_error"}
RECEIVER = {name for name in FAILPOINTS if name.startswith("redo_receiver.")}  # of downstream capture
DOWNSTREAM_KINDS = {"kill redo", "redo stream cut", "standby power loss", *RECEIVER}
DOWNSTREAM_SEEN = {"standby redo purged", "standby redo full"}
SPLITTABLE = ("fan_out", "hub_and_spoke", "n_way", "extended_secondaries")
SPLITTING_SEED = 1
SWITCHING_SEED = 11
# Redo is full, to the bound, of what the capture process of a split stream mines again for a refused destination.
MINED_AGAIN_SEED = 1371554842
DOWNSTREAM_FAN_OUT = """
topology: downstream_fan_out
sites: {dbs1: {database: {kind: embedded}}, dbs2: {database: {kind: embedded}}, dbs3: {database: {kind: embedded}}}
queues: {q_dbs1: {site: dbs2}, q_dbs3: {site: dbs3}}
captures: {capture_dbs1: {site: dbs2, source: dbs1, queue: q_dbs1, rules: {include: [{schema: hr}]}}}
propagations: {to_dbs3: {from: q_dbs1, to: q_dbs3}}
applies:
  apply_at_dbs2: {site: dbs2, source: dbs1, queue: q_dbs1}
  apply_at_dbs3: {site: dbs3, source: dbs1, queue: q_dbs3}
"""
SPLIT_KINDS = {"splitting", "split", "merging", "merged", "merge given up", "split by threshold"}
SPLIT_SEEN = {"others ahead of a split stream"}
KINDS = {
    "cut", "parted", "delayed", "sent twice", "overtaken", "clock jumped", "stream broken", "source down", "destination down",
    "commit answer lost", "second driver", "task killed", "spill damaged", "older driver fenced out", "power loss", "table altered",
    "kill site", "kill capture", "kill queue", "kill propagation", "kill apply", "kill apply in a gap",
    "edited", "destination added", "destination removed", "stopped", "restored", *(set(FAILPOINTS) - NEVER - RECEIVER),
}
SEEN = {
    "spilled", "queue paused", "rewound", "redo full", "disk full", "redo purged", "waiting for dependencies", "replayed", "groups at once",
    "applied above the low watermark", "began with gaps", "streamed transaction", "combined", "combined without credit", "waiting for ALTER",
}


def example(name: str) -> TopologySpec:
    """A topology of the examples, or of a file beside this one."""
    beside = Path(__file__).with_name(f"{name}.yaml")
    return read_topology(beside if beside.exists() else ROOT / "examples" / f"{name}.yaml", {"DBS1_DSN": "host=dbs1.invalid", "DBS2_DSN": "host=dbs2.invalid"})


def run(name: str, seed: int, settings: Settings) -> Outcome:
    print(f"headrace simulate examples/{name}.yaml --seed {seed} --seconds {settings.seconds:g}")
    outcome = simulate(example(name), seed, settings)
    assert outcome.is_fine, "\n".join([f"{outcome.invariant}: {outcome.place}: {outcome.problem}", *outcome.trace])
    return outcome


def run_until_seen(names: Sequence[str], kinds: set[str], sights: set[str]) -> None:
    """Run these examples in turn, new seeds for a third of the time, and on until all of this has fired and been seen."""
    first, until = secrets.randbits(32), time.process_time() + SECONDS / 3
    fired: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    count = 0
    while time.process_time() < until or (count < SEEDS_MAX and (kinds - set(fired)) | (sights - set(seen))):
        outcome = run(names[count % len(names)], first + count, Settings())
        fired.update(outcome.fired)
        seen.update(outcome.seen)
        count += 1
    print(f"{count} seeds from {first} on, {dict(fired)}, {dict(seen)}")
    assert set(fired) >= kinds
    assert set(seen) >= sights


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_converges_whatever_breaks(name: str) -> None:
    for _ in range(SEEDS_FOR_HARM if SECONDS else 1):
        outcome = run(name, secrets.randbits(32) if SECONDS else FIXED_SEED, Settings(seconds=MOMENT_S))
        if sum(outcome.fired.values()) >= HARM_MIN:
            break
    assert sum(outcome.fired.values()) >= HARM_MIN, "nothing broke: this run proves nothing"


@pytest.mark.parametrize("name", ["renames", "exchanged_names", "forwarded_names"])
def test_renamed_tables_converge_whatever_breaks(name: str) -> None:
    """At a capture process, a propagation and an apply process, one behind the other; two sites that call one table differently; a hub that sends on what it calls otherwise."""
    fired = 0
    for seed in [secrets.randbits(32)] * bool(SECONDS) + [FIXED_SEED, FIXED_SEED + 1]:
        outcome = run(name, seed, Settings(seconds=2 * MOMENT_S))
        fired += sum(outcome.fired.values())
    assert fired >= HARM_MIN


def test_subsets_converge_whatever_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a capture process, a propagation and an apply process; two of them behind each other."""
    moved: Counter[int] = Counter()

    def counted(batch, commands, keep):
        moved.update(command for rows in commands.values() for command in rows.tolist())
        return migrated(batch, commands, keep)

    monkeypatch.setattr("rules.row_evaluation.migrated", counted)
    fired = 0
    for seed in [secrets.randbits(32)] * bool(SECONDS) + [FIXED_SEED, FIXED_SEED + 1]:
        outcome = run("subsets", seed, Settings(seconds=2 * MOMENT_S))
        fired += sum(outcome.fired.values())
    assert fired >= HARM_MIN
    assert moved[Command.INSERT] > 5
    assert moved[Command.DELETE] > 5


@pytest.mark.parametrize(("name", "problem"), REFUSED.items())
def test_example_that_cannot_be_simulated_is_refused_by_name(name: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        simulate(example(name), FIXED_SEED, Settings())


@pytest.mark.skipif(SECONDS == 0, reason="HEADRACE_SIMULATION_SECONDS is not set: the quick gate runs each example once")
def test_topologies_converge_whatever_breaks() -> None:
    first, until = secrets.randbits(32), time.process_time() + SECONDS
    fired: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    count = 0

    def missing() -> set[str]:
        return (KINDS - set(fired)) | (SEEN - set(seen))

    while time.process_time() < until or (SEEDS_FOR_EVERYTHING <= count < SEEDS_MAX and missing()):
        outcome = run(SIX[count % len(SIX)], first + count, Settings())
        fired.update(outcome.fired)
        seen.update(outcome.seen)
        count += 1
    print(f"{count} seeds from {first} on, {dict(fired)}, {dict(seen)}")
    if count >= SEEDS_FOR_EVERYTHING:
        assert not missing()


@pytest.mark.skipif(SECONDS == 0, reason="HEADRACE_SIMULATION_SECONDS is not set: the quick gate runs each example once")
def test_downstream_capture_converges_whatever_breaks() -> None:
    """The redo is copied to another site and mined there: what breaks there is all seen."""
    run_until_seen(("downstream",), DOWNSTREAM_KINDS, DOWNSTREAM_SEEN)


@pytest.mark.skipif(SECONDS == 0, reason="HEADRACE_SIMULATION_SECONDS is not set: the quick gate runs each example once")
def test_streams_are_split_off_and_merged_whatever_breaks() -> None:
    """Among several destinations of one queue: by thresholds and by hand, given up in between, while the others are ahead."""
    run_until_seen(SPLITTABLE, SPLIT_KINDS, SPLIT_SEEN)


@pytest.mark.skipif(SECONDS == 0, reason="HEADRACE_SIMULATION_SECONDS is not set: the quick gate runs each example once")
def test_streams_of_a_downstream_capture_process_are_split_off_and_merged_whatever_breaks(tmp_path: Path) -> None:
    """Seed 1 found that a stream could be merged below what was told to be durable, where another destination had lost commits since."""
    file = tmp_path / "downstream_fan_out.yaml"
    file.write_text(DOWNSTREAM_FAN_OUT, encoding="utf-8")
    spec, until, seed, fired = read_topology(file), time.process_time() + SECONDS / 6, 0, Counter[str]()
    while time.process_time() < until or (seed < SEEDS_FOR_EVERYTHING and not {"split", "merged"} <= set(fired)):
        seed += 1
        outcome = simulate(spec, seed, Settings())
        assert outcome.is_fine, "\n".join([f"seed {seed}: {outcome.invariant}: {outcome.place}: {outcome.problem}", *outcome.trace])
        fired.update(outcome.fired)
    print(f"{seed} seeds, {dict(fired)}")
    assert {"split", "merged"} <= set(fired)


def test_streams_are_split_off_and_merged() -> None:
    outcome = run("fan_out", SPLITTING_SEED, Settings())
    assert set(outcome.fired) >= {"splitting", "split", "merging", "merged"}


def test_redo_that_is_full_of_what_is_mined_again_does_not_stay_full() -> None:
    """The split stream's destination is refused; the others of the source stood still. See `tests.unit.actors.test_capture_mining_again`."""
    run("fan_out", MINED_AGAIN_SEED, Settings())


def test_nothing_breaks_without_faults() -> None:
    outcome = run("two_way", 1, Settings(faults=frozenset(), edits=False, seconds=10.0))
    assert set(outcome.fired) <= {"table altered"}
    assert outcome.transactions > 20


@pytest.mark.parametrize("fault", sorted(EVERY_FAULT))
def test_each_kind_of_fault_can_be_had_alone(fault: str) -> None:
    outcome = run("two_way", 3, Settings(faults=frozenset({fault}), edits=False, seconds=10.0))
    alone = {
        "partition": {"cut", "parted"}, "delay": {"delayed"}, "duplicate": {"sent twice"}, "reorder": {"overtaken"}, "clock": {"clock jumped"},
    }
    if fault in alone:
        assert set(outcome.fired) - {"table altered"} <= alone[fault]
    assert sum(outcome.fired.values()) > 0


@pytest.mark.long
def test_seed_decides_everything_in_every_process() -> None:
    """Bit for bit, also where strings hash differently."""
    def digest(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", "from headrace.cli import main; main()", "simulate", "examples/extended_secondaries.yaml", "--seed", "11", "--seconds", "3", "--json"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True, timeout=300,
        )
        return str(json.loads(done.stdout)["outcomes"][0]["digest"])

    # This process has another hash seed, by chance.
    assert digest("1") == simulate(example("extended_secondaries"), 11, Settings(seconds=3.0)).digest


def test_other_seed_is_another_run() -> None:
    first, second = (simulate(example("two_way"), seed, Settings(seconds=3.0)).digest for seed in (1, 2))
    assert first != second


def test_nothing_is_kept_for_a_refused_apply_process_that_is_switched_to_queues() -> None:
    # The first seed does it, as long as the product does not draw other numbers; of the others one in fifteen does.
    for seed in (SWITCHING_SEED, *range(1, 100)):
        if run("one_way", seed, Settings()).fired.get("refused one switched", 0):
            return
    pytest.fail("no refused apply process was switched")


def test_topology_that_cannot_be_simulated_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "cycle.yaml"
    file.write_text("""
topology: cycle
allow_cycle: true
sites:
  a: {database: {kind: embedded}}
  b: {database: {kind: embedded}}
queues: {qa: {site: a}, qb: {site: b}, qa_in: {site: a}, qb_in: {site: b}}
captures:
  ca: {site: a, source: a, queue: qa, rules: {include: [{table: s.*, tagged: true}]}}
  cb: {site: b, source: b, queue: qb, rules: {include: [{table: s.*, tagged: true}]}}
propagations: {ab: {from: qa, to: qb_in}, ba: {from: qb, to: qa_in}}
applies: {at_b: {site: b, source: a, queue: qb_in}, at_a: {site: a, source: b, queue: qa_in}}
""", encoding="utf-8")
    with pytest.raises(ConfigError, match="more than once"):
        simulate(read_topology(file), 1, Settings())
