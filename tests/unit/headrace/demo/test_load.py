from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.demo.load import ORDERS, OneWayLoad, OrdersLoad, Probe, _Pgbench, _Sample


def probe(*samples: tuple[float, float]) -> Probe:
    made = Probe("", "", "t")
    made._samples = {number: _Sample(committed, visible) for number, (committed, visible) in enumerate(samples, 1)}
    return made


def test_latencies_are_commit_to_visible():
    p50, p99 = probe(*((float(n), n + n / 1000) for n in range(1, 101))).latencies_ms()
    assert p50 == pytest.approx(51, abs=1)
    assert p99 == pytest.approx(100, abs=1)


def test_row_seen_before_its_commit_returned_took_no_time():
    assert probe((10.0, 9.999)).latencies_ms() == (0.0, 0.0)


def test_no_sample_is_no_number():
    assert probe((1.0, 0.0)).latencies_ms() is None
    in_the_outage = probe((4.9, 8.0), (5.5, 8.5))
    in_the_outage.outage_began(5.0)
    assert in_the_outage.latencies_ms() is None


def test_healed_is_the_first_commit_after_the_kill_that_is_visible():
    measured = probe((1.0, 1.1), (4.9, 8.0), (5.5, 9.5), (5.2, 9.0), (7.0, 0.0))
    assert measured.healed_s(5.0) == pytest.approx(4.0)
    assert probe((4.9, 8.0), (5.5, 0.0)).healed_s(5.0) is None


def test_what_the_outage_held_up_is_no_ordinary_latency():
    # commits:      1 -> 1.1   4.9 -> 8   5.5 -> 8.5 (healed)   8.2 -> 8.6   9 -> 9.2
    measured = probe((1.0, 1.1), (4.9, 8.0), (5.5, 8.5), (8.2, 8.6), (9.0, 9.2))
    measured.outage_began(5.0)
    assert measured.latencies_ms() == (200.0, 200.0)
    assert len([sample for sample in measured._samples.values() if sample.visible_at]) == 5


def pgbench(folder: Path, text: str) -> _Pgbench:
    log = folder / "pgbench.log"
    log.write_text(text)
    return _Pgbench(None, [], log, 1000)  # type: ignore[arg-type]


def test_transactions_are_counted_from_progress_until_the_end(tmp_path):
    running = "progress: 1.0 s, 100.0 tps, lat 1 ms\nprogress: 3.0 s, 50.5 tps, lat 1 ms\n"
    assert pgbench(tmp_path, running).transactions() == 201
    assert pgbench(tmp_path, running + "number of transactions actually processed: 998/1000\n").transactions() == 998
    assert pgbench(tmp_path, "").transactions() == 0


def test_progress_never_shows_more_than_there_will_be(tmp_path):
    assert pgbench(tmp_path, "progress: 10.0 s, 900.0 tps, lat 1 ms\n").transactions() == 1000


@pytest.mark.parametrize(
    ("writers", "changes", "prepared"),
    [(0, 4 * 8, 0), (1, 2 * 8 + ORDERS, ORDERS), (3, 2 * 24 + 3 * ORDERS, 3 * ORDERS)],
    ids=["pgbench", "one writer", "three writers"],
)
def test_every_row_change_is_counted_and_those_before_the_clients_are_told_apart(writers, changes, prepared, tmp_path):
    server: Any = None  # nothing is asked of it
    clients = {"transactions": 7, "clients": 4, "rate": 1, "logs": tmp_path}
    orders = OrdersLoad([server] * 4, writers=writers, schema="s", **clients)
    load = orders if writers else OneWayLoad(server, server, **clients)
    for log in ("pgbench.log", *(f"pgbench_{side}.log" for side in range(writers))):
        (tmp_path / log).write_text("number of transactions actually processed: 8/8\n")
    assert load.transactions_done() == load.transactions_wanted
    assert (load.row_changes(), load.rows_prepared) == (changes, prepared)
