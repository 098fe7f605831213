"""`headrace simulate`: its output and exit codes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli.app import main
from headrace.console.exit_codes import DONE, FINDING, WRONG_USE
from headrace.simulation.observing.violations import Invariant
from tests.support.topologies.planted_defects import PLANTED

ROOT = Path(__file__).parents[2]
RELAY = ROOT / "examples" / "relay.yaml"
LINES_MAX = 80  # the trace has 60 at most; the rest names the broken invariant, and how to reproduce it
PLANTED_HERE = "a queue tells as durable what it has received"  # found by its first seed in half a second

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run_it(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "simulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return run_it


@pytest.fixture
def defect(monkeypatch: pytest.MonkeyPatch) -> None:
    next(planted for planted in PLANTED if planted.name == PLANTED_HERE).plant(monkeypatch)


def test_sound_topology_exits_with_0_and_tells_what_was_done(run: Run) -> None:
    code, out, err = run(RELAY, "--seed", 5, "--seconds", 1)
    assert (code, "simulating relay: seed 5" in err) == (DONE, True)
    found = re.match(r"seed 5: every invariant holds; (\d+) transactions, (\d+) faults", out)
    assert found
    assert int(found[1]) > 0
    assert re.search(r"^trace digest [0-9a-f]{64}$", out, re.MULTILINE)


def test_random_seed_is_printed_and_does_the_same_again(run: Run) -> None:
    code, out, err = run(RELAY, "--seconds", 1)
    seed = re.search(r"simulating relay: seed (\d+)", err)
    assert seed
    assert run(RELAY, "--seed", seed[1], "--seconds", 1)[:2] == (code, out)


def test_several_seeds_stop_at_none_when_all_hold(run: Run) -> None:
    code, out, _ = run(RELAY, "--seed", "5-6", "--seconds", 1, "--jobs", 1, "--faults", "none", "--no-edits")
    assert code == DONE
    assert out.startswith("seeds 5-6: every invariant holds; ")


@pytest.mark.usefixtures("defect")
def test_planted_defect_exits_with_1_and_prints_its_seed_and_short_trace(run: Run) -> None:
    code, out, _ = run(RELAY, "--seed", 1)
    lines = out.splitlines()
    assert code == FINDING
    assert lines[0] == f"seed 1: does not hold: {Invariant.PROMISES.value}"
    assert "redo below" in lines[1]
    assert 10 < len(lines) <= LINES_MAX
    assert f"to repeat: headrace simulate {RELAY} --seed 1 --seconds 30 --faults all" in out
    assert run(RELAY, "--seed", 1)[1] == out, "another run of the seed finds something else"


@pytest.mark.usefixtures("defect")
def test_json_of_a_planted_defect_is_one_document(run: Run) -> None:
    code, out, _ = run(RELAY, "--seed", 1, "--json")
    found = json.loads(out)
    (outcome,) = found["outcomes"]
    assert (code, found["topology"], outcome["seed"], outcome["is_fine"]) == (FINDING, "relay", 1, False)
    assert outcome["invariant"] == Invariant.PROMISES.value
    assert 0 < len(outcome["trace"]) <= LINES_MAX


def test_json_of_a_sound_topology_is_one_document(run: Run) -> None:
    code, out, _ = run(RELAY, "--seed", 5, "--seconds", 1, "--json")
    (outcome,) = json.loads(out)["outcomes"]
    assert (code, outcome["is_fine"], outcome["invariant"], outcome["trace"]) == (DONE, True, "", [])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--seed", "many"), "is not a number, nor FIRST-LAST"),
        (("--seed", "5-1"), "0 seeds"),
        (("--seed", "1-5", "--seeds", "2"), "exclude each other"),
        (("--seconds", "0"), "nothing would happen"),
        (("--faults", "flood"), "there is no fault 'flood'"),
    ],
)
def test_wrong_use_exits_with_2(run: Run, options: tuple[str, ...], problem: str) -> None:
    code, out, err = run(RELAY, *options)
    assert (code, out) == (WRONG_USE, "")
    assert problem in err
    assert "fix: " in err


def test_topology_with_a_problem_exits_with_1(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(RELAY.read_text(encoding="utf-8").replace("queues:", "quues:"), encoding="utf-8")
    assert run(file)[0] == FINDING
