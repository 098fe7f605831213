"""Pgbench's progress output, and the sums that its transactions keep equal."""

from __future__ import annotations

from pathlib import Path

from headrace.load.pgbench import Pgbench, Sums


def pgbench(folder: Path, text: str) -> Pgbench:
    log = folder / "pgbench.log"
    log.write_text(text)
    return Pgbench("", log=log, wanted=1000)


def test_transactions_are_counted_from_progress_until_the_end(tmp_path):
    running = "progress: 1.0 s, 100.0 tps, lat 1 ms\nprogress: 3.0 s, 50.5 tps, lat 1 ms\n"
    assert pgbench(tmp_path, running).transactions() == 201
    assert pgbench(tmp_path, running + "number of transactions actually processed: 998/1000\n").transactions() == 998
    assert pgbench(tmp_path, "").transactions() == 0


def test_progress_never_exceeds_the_final_count(tmp_path):
    assert pgbench(tmp_path, "progress: 10.0 s, 900.0 tps, lat 1 ms\n").transactions() == 1000


def test_balances_that_are_not_the_sum_of_the_deltas_are_named():
    moved = Sums(transactions=2, deltas=7, accounts=7, branches=7, tellers=7)
    assert moved.problems() == []
    wrong = Sums(transactions=3, deltas=9, accounts=9, branches=7, tellers=8)
    assert wrong.problems() == [
        "the balances of branches make 7, the deltas 9",
        "the balances of tellers make 8, the deltas 9",
    ]
    assert wrong.since(moved) == Sums(transactions=1, deltas=2, accounts=2, branches=0, tellers=1)
