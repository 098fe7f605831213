from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.demo.load import ORDERS, OneWayLoad, OrdersLoad
from tests.support.actors.probes import probe


def test_latency_is_the_time_from_commit_to_visible():
    latencies = probe(*((float(n), n + n / 1000) for n in range(1, 101))).latencies_ms()
    assert latencies is not None
    p50, p99 = latencies
    assert p50 == pytest.approx(51, abs=1)
    assert p99 == pytest.approx(100, abs=1)


def test_row_seen_before_its_commit_returned_has_no_latency():
    assert probe((10.0, 9.999)).latencies_ms() == (0.0, 0.0)


def test_no_sample_gives_no_number():
    assert probe((1.0, 0.0)).latencies_ms() is None
    in_the_outage = probe((4.9, 8.0), (5.5, 8.5))
    in_the_outage.outage_began(5.0)
    assert in_the_outage.latencies_ms() is None


def test_healed_time_ends_with_the_first_visible_commit_after_the_kill():
    measured = probe((1.0, 1.1), (4.9, 8.0), (5.5, 9.5), (5.2, 9.0), (7.0, 0.0))
    assert measured.healed_s(5.0) == pytest.approx(4.0)
    assert probe((4.9, 8.0), (5.5, 0.0)).healed_s(5.0) is None


def test_rows_delayed_by_the_outage_are_no_ordinary_latency():
    # commits:      1 -> 1.1   4.9 -> 8   5.5 -> 8.5 (healed)   8.2 -> 8.6   9 -> 9.2
    measured = probe((1.0, 1.1), (4.9, 8.0), (5.5, 8.5), (8.2, 8.6), (9.0, 9.2))
    measured.outage_began(5.0)
    assert measured.latencies_ms() == (200.0, 200.0)
    assert len(measured.crossings.times()) == 5


@pytest.mark.parametrize(
    ("writers", "changes", "prepared"),
    [(0, 4 * 8, 0), (1, 2 * 8 + ORDERS, ORDERS), (3, 2 * 24 + 3 * ORDERS, 3 * ORDERS)],
    ids=["pgbench", "one writer", "three writers"],
)
def test_row_changes_before_the_clients_are_counted_separately(writers, changes, prepared, tmp_path):
    server: Any = SimpleNamespace(dsn=lambda: "")  # no client connects
    clients = {"transactions": 7, "clients": 4, "rate": 1, "logs": tmp_path}
    orders = OrdersLoad([server] * 4, writers=writers, schema="s", **clients)
    load = orders if writers else OneWayLoad(server, server, **clients)
    for log in ("pgbench.log", *(f"pgbench_{side}.log" for side in range(writers))):
        (tmp_path / log).write_text("number of transactions actually processed: 8/8\n")
    assert load.transactions_done() == load.transactions_wanted
    assert (load.row_changes(), load.rows_prepared) == (changes, prepared)
