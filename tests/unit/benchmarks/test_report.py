"""The benchmark's report: its figures, what counts as a shortcoming, and the sizes that it promises.

Nothing is measured.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.__main__ import FOOTPRINT_MAX_MB, RATIO_MIN, RESULTS, RUNS_MIN, Bench, report, shortcomings, show
from benchmarks.networks import NETWORKS, HeadraceNetwork
from benchmarks.processes import Footprint, Usage, footprint, stage_of
from benchmarks.product import _TOPOLOGY, HeadracePeer
from benchmarks.runs import Run
from benchmarks.servers import Pair
from benchmarks.workloads import BULK_TABLE, Bulk, Latency, LatencyResult, Oltp, OneTransaction
from headrace.databases.postgres.catalog.source_tables import slot_name
from topology.checks.static import check
from topology.file.reading import read_topology
from topology.links import makes_certificates

ROOT = Path(__file__).parents[3]
USAGE = {"apply driver": Usage(1.5, 300.0, 1)}


def run(seconds: float, *, verified: bool = True) -> Run:
    return Run(seconds=seconds, verified=verified, usage=USAGE)


def result(
    native: list[float],
    native_on: list[float],
    headrace: list[float],
    *,
    p50_ms: float = 10.0,
    verified: bool = True,
    memory: dict[str, object] | None = None,
    footprint_mb: float = 200.0,
) -> dict[str, Any]:
    workload = Bulk.of(1.0)
    seconds = {
        "native": native,
        "native_on": native_on,
        "headrace": headrace,
        "queued": [2 * each for each in headrace],
    }
    bench = SimpleNamespace(
        runs={
            (workload.name, setting): [run(each, verified=verified or number > 0) for number, each in enumerate(found)]
            for setting, found in seconds.items()
        }
    )
    latency = {"headrace": LatencyResult(p50_ms=p50_ms, p99_ms=2 * p50_ms, max_ms=3 * p50_ms, count=3000)}
    return report(bench, [workload], latency, memory or {}, {"apply:x": Footprint(footprint_mb, 1)})


@pytest.mark.parametrize(("setting", "same"), [("off", 0.55), ("on", 1.1)])
def test_figures_are_medians_and_ratio_is_to_the_faster_native_setting(
    setting: str, same: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.runs.SYNCHRONOUS_COMMIT", setting)
    (entry,) = result([2.0, 9.0, 2.2], [3.3, 4.4, 9.9], [4.0, 1.0, 4.4])["workloads"]
    assert (entry["name"], entry["native_s"], entry["headrace_s"], entry["verified"]) == ("bulk", 2.2, 4.0, True)
    assert (entry["ratio"], entry["ratio_same_synchronous_commit"]) == (0.55, same)
    assert (entry["native_rows_per_s"], entry["headrace_rows_per_s"]) == (round(350_000 / 2.2), 87_500)
    assert entry["runs"] == {
        "native": [2.0, 9.0, 2.2],
        "native_on": [3.3, 4.4, 9.9],
        "headrace": [4.0, 1.0, 4.4],
        "queued": [8.0, 2.0, 8.8],
    }
    assert entry["queued_s"] == 8.0
    assert entry["cpu_s_per_100k_rows"] == {"headrace": 0.429, "queued": 0.429}
    assert entry["headrace_usage"] == {"apply driver": {"cpu_s": 1.5, "peak_mb": 300.0, "processes": 1}}


def test_one_run_with_different_contents_is_a_shortcoming() -> None:
    found = result([2.0] * 3, [2.0] * 3, [1.0] * 3, verified=False)
    assert shortcomings(found) == ["bulk: source and destination differ"]


@pytest.mark.parametrize(
    ("headrace_s", "p50_ms", "memory", "missed"),
    [
        (4.0, 199.0, {"verified": True, "peak_mb": 1000.0}, ""),
        (4.1, 10.0, None, f"bulk: 0.488 of native, wanted {RATIO_MIN}"),
        (1.0, 201.0, None, "latency: p50 201.0 ms, wanted 200.0"),
        (1.0, 10.0, {"verified": True, "peak_mb": 1025.0}, "memory: a process had 1025.0 MB, wanted 1024.0"),
        (1.0, 10.0, {"verified": False, "peak_mb": 100.0}, "memory"),
    ],
)
def test_missed_goals_are_named(
    headrace_s: float, p50_ms: float, memory: dict[str, object] | None, missed: str
) -> None:
    found = shortcomings(result([2.0] * 3, [3.0] * 3, [headrace_s] * 3, p50_ms=p50_ms, memory=memory))
    assert [text.startswith(missed) for text in found] == ([True] if missed else [])


def test_footprint_above_the_goal_is_named_and_every_component_printed(capsys: pytest.CaptureFixture[str]) -> None:
    found = result([2.0] * 3, [3.0] * 3, [1.0] * 3, footprint_mb=FOOTPRINT_MAX_MB + 1)
    assert shortcomings(found) == ["footprint: 2049.0 MB, wanted 2048.0"]
    show(found)
    assert "apply:x                             2049.0 MB    1 processes" in capsys.readouterr().out


def test_footprint_of_a_process_is_its_proportional_set_size() -> None:
    found = footprint((os.getpid(),), {os.getpid(): "apply:x"})
    resident = psutil.Process().memory_info().rss / (1 << 20)
    assert 5.0 < found["apply:x"].pss_mb <= resident
    assert found["apply:x"].processes == 1


def test_both_ratios_stages_and_latency_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show(result([2.0] * 3, [4.0] * 3, [2.5] * 3))
    printed = capsys.readouterr().out
    line = next(line for line in printed.splitlines() if line.startswith("bulk "))
    assert line.split() == ["bulk", "2.00", "2.50", "0.80", "0.80", "175,000", "140,000", "True"]
    assert "apply driver" in printed
    assert "1.50 s     300.0 MB" in printed
    assert "latency, headrace: p50 10.0 ms, p99 20.0 ms" in printed


def test_workloads_have_their_promised_sizes() -> None:
    assert RUNS_MIN >= 3
    bulk, oltp, one, latency = Bulk.of(1.0), Oltp.of(1.0), OneTransaction.of(1.0), Latency()
    assert (bulk.transactions, bulk.row_changes) == (2000 + 1000 + 500, (2000 + 1000 + 500) * 100)
    assert (oltp.transactions, oltp.row_changes, oltp.scale) == (20_000, 80_000, 10)
    assert (one.transactions, one.row_changes) == (1, 500_000)
    assert latency.rate == 100
    assert BULK_TABLE.count(",") - BULK_TABLE.count("numeric(12,2)") + 1 == 8


def test_settings_alternate_and_each_round_measures_every_one() -> None:
    orders = [Bench._order(number) for number in range(4)]
    assert {frozenset(order) for order in orders} == {frozenset({"native", "headrace", "native_on", "queued"})}
    assert orders[0] != orders[1] == orders[3]


def test_cost_of_authentication_is_measured_reported_and_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert all(
        sorted(Bench._order(number, ("open", "ddl"))) == sorted((*Bench._order(number), "open", "ddl"))
        for number in range(2)
    )
    workload = Bulk.of(1.0)
    seconds = {
        "native": [2.0],
        "native_on": [2.0],
        "headrace": [2.5, 9.0, 2.4],
        "queued": [3.0],
        "open": [2.0, 2.2, 9.0],
    }
    bench = SimpleNamespace(
        runs={(workload.name, setting): [run(each) for each in found] for setting, found in seconds.items()}
    )
    latency = {
        name: LatencyResult(p50_ms=p50_ms, p99_ms=20.0, max_ms=30.0, count=3000)
        for name, p50_ms in (("headrace", 6.5), ("open", 5.5))
    }
    found: dict[str, Any] = report(
        bench, [workload], latency, {}, {}, start_up={"headrace": [31.0, 29.004, 30.0], "open": [27.0]}
    )
    (entry,) = found["workloads"]
    assert (entry["headrace_s"], entry["open_s"]) == (2.5, 2.2)
    assert set(entry["cpu_s_per_100k_rows"]) == {"headrace", "queued", "open"}
    assert found["start_up_s"] == {
        "headrace": {"median": 30.0, "runs": [31.0, 29.0, 30.0]},
        "open": {"median": 27.0, "runs": [27.0]},
    }
    assert shortcomings(found) == []
    show(found)
    printed = capsys.readouterr().out
    assert "bulk: with certificates 2.50 s, with `tls: none` 2.20 s" in printed
    assert "latency p50: with certificates 6.5 ms, with `tls: none` 5.5 ms" in printed
    assert "`headrace up` where nothing runs: with certificates 30.00 s, with `tls: none` 27.00 s" in printed


def test_unmeasured_authentication_is_not_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = result([2.0] * 3, [2.0] * 3, [2.5] * 3)
    show(found)
    assert found["start_up_s"] == {}
    assert "tls: none" not in capsys.readouterr().out


def test_start_up_is_timed_in_alternating_forms_without_the_warm_up() -> None:
    done: list[str] = []
    seconds = iter(range(1, 100))

    def restart() -> float:
        done.append("restart")
        return float(next(seconds))

    headrace = SimpleNamespace(
        start=lambda: done.append("start"),
        change=lambda *, is_open: done.append("open" if is_open else "headrace"),
        restart=restart,
    )
    native = SimpleNamespace(stop=lambda: done.append("native stops"))
    bench = Bench(SimpleNamespace(), native, headrace)
    assert bench.start_up(2) == {"headrace": [3.0, 6.0], "open": [4.0, 5.0]}
    assert done == [
        "native stops",
        "start",
        *(
            word
            for setting in ("open", "headrace", "headrace", "open", "open", "headrace")
            for word in (setting, "restart")
        ),
    ]


def test_open_form_is_the_same_topology_without_certificates(tmp_path: Path) -> None:
    written: list[str] = []
    peer = HeadracePeer(Pair("dbname=a", "dbname=b"), tmp_path)
    peer.command = lambda *arguments: written.append(peer.file.read_text())  # type: ignore[method-assign]
    environment = {"BENCH_SOURCE_DSN": "host=127.0.0.1 dbname=a", "BENCH_DESTINATION_DSN": "host=127.0.0.1 dbname=b"}
    specs = []
    for is_open in (False, True):
        peer.change(is_open=is_open)
        specs.append(read_topology(peer.file, environment))
    assert written[1] == written[0].replace("synchronous_commit", "tls: none\nsynchronous_commit")
    assert [makes_certificates(spec) for spec in specs] == [True, False]
    assert [[site.tls is None for site in spec.sites] for spec in specs] == [[False, False], [True, True]]


def test_form_with_ddl_is_the_same_topology_with_ddl(tmp_path: Path) -> None:
    written: list[str] = []
    peer = HeadracePeer(Pair("dbname=a", "dbname=b"), tmp_path)
    peer.command = lambda *arguments: written.append(peer.file.read_text())  # type: ignore[method-assign]
    environment = {"BENCH_SOURCE_DSN": "host=127.0.0.1 dbname=a", "BENCH_DESTINATION_DSN": "host=127.0.0.1 dbname=b"}
    taken = []
    for has_ddl in (False, True):
        peer.change(has_ddl=has_ddl)
        spec = read_topology(peer.file, environment)
        assert check(spec) == ()
        rules = spec.capture_rules("src")
        taken.append([rule.ddl for rule_set in rules for rule in rule_set.include])
    assert written[1] == written[0].replace("[dst]}", "[dst], ddl: true}")
    assert taken == [[False], [True]]


def test_rows_with_ddl_are_reported_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    workload = Bulk.of(1.0)
    seconds = {"native": [2.0], "native_on": [2.0], "headrace": [2.5], "queued": [3.0], "ddl": [2.6]}
    bench = SimpleNamespace(
        runs={(workload.name, setting): [run(each) for each in found] for setting, found in seconds.items()}
    )
    latency = {
        name: LatencyResult(p50_ms=p50_ms, p99_ms=20.0, max_ms=30.0, count=3000)
        for name, p50_ms in (("headrace", 6.5), ("ddl", 6.6))
    }
    found = report(bench, [workload], latency, {}, {})
    (entry,) = found["workloads"]
    assert (entry["ddl_s"], entry["cpu_s_per_100k_rows"].keys()) == (2.6, {"headrace", "queued", "ddl"})
    show(found)
    printed = capsys.readouterr().out
    assert "bulk: with `ddl: true` 2.60 s, without 2.50 s" in printed
    assert "latency p50: with `ddl: true` 6.6 ms, without 6.5 ms" in printed
    assert "tls: none" not in printed


def test_slot_of_the_bench_is_that_of_its_own_topology() -> None:
    assert "topology: bench\n" in _TOPOLOGY
    assert "\n  src: " in _TOPOLOGY
    assert slot_name("bench", "src") == "headrace_bench_src"


def test_networks_and_idle_cpu_are_reported_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    fan_out, two_way = NETWORKS

    def rounds(*seconds: float, verified: bool = True) -> list[Run]:
        return [Run(seconds=each, verified=verified, usage=USAGE) for each in seconds]

    networks = {
        fan_out: {
            "native": rounds(4.0, 3.0, 9.0),
            "native_on": rounds(6.0, 6.0, 6.0),
            "headrace": rounds(5.0, 1.0, 2.0),
        },
        two_way: {"native": rounds(1.0), "native_on": rounds(1.0), "headrace": rounds(1.0, verified=False)},
    }
    idle = {"apply driver": Usage(0.5, 1.0, 1), "source: other": Usage(20.0, 1.0, 1)}
    bench = SimpleNamespace(runs={})
    found = report(bench, [], {}, {}, {}, networks, idle)
    first = found["networks"][0]
    assert (first["name"], first["ratio"], first["ratio_same_synchronous_commit"], first["verified"]) == (
        "fan_out",
        2.0,
        2.0,
        True,
    )
    assert found["idle_cpu_percent"] == {"apply driver": 2.5}
    assert shortcomings(found) == ["two_way: source and destination differ"]
    show(found)
    printed = capsys.readouterr().out
    assert "fan_out: native 4.00 s, Headrace 2.00 s, ratio 2.00, same commit 2.00, verified True" in printed
    assert "together                            2.50" in printed


def test_network_topology_has_every_site_and_its_writers_as_sources(tmp_path: Path) -> None:
    for network in NETWORKS:
        written: list[str] = []
        peer = HeadraceNetwork(network, dict.fromkeys(network.sites, "dbname=x"), tmp_path)
        peer.bring_up, peer.wait_caught_up = written.append, lambda: None  # type: ignore[method-assign, assignment]  # no network is up
        peer.set_up()
        file = tmp_path / f"{network.name}.yaml"
        file.write_text(written[0])
        spec = read_topology(
            file, {f"BENCH_{site.upper()}_DSN": f"host=127.0.0.1 dbname={site}" for site in network.sites}
        )
        assert {site.name for site in spec.sites} == set(network.sites)
        assert {capture.source for capture in spec.captures} == set(network.sources)
        assert {(apply.source, apply.site) for apply in spec.applies} == set(network.flows)


@pytest.mark.parametrize(
    ("command", "stage"),
    [
        (
            "postgres: bench_source: walsender postgres bench_headrace 127.0.0.1(4) START_REPLICATION",
            "source: walsender",
        ),
        (
            "postgres: bench_destination: logical replication apply worker for subscription 16400",
            "destination: native apply",
        ),
        ("postgres: bench_destination: postgres bench_headrace [local] idle", "destination: backends"),
        ("python -m spark_apply.application.process", "Spark"),
        ("python -m spark_apply.application.daemon", "apply servers"),
        ("java -cp spark --conf spark.python.daemon.module=spark_apply.application.daemon pyspark-shell", "Spark"),
        ("bash", None),
    ],
)
def test_processes_are_assigned_to_stages_by_their_command_lines(command: str, stage: str | None) -> None:
    assert stage_of(command) == stage


def test_results_stay_out_of_the_repository() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", str(RESULTS)], cwd=ROOT, check=False)
    if ignored.returncode == 128:
        pytest.skip("not a git checkout")
    assert ignored.returncode == 0
