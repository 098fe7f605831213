"""The bundled pgbench, and the sums that its transactions keep equal."""

from __future__ import annotations

import math
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from headrace.base.errors import ApplyError
from headrace.databases.embedded.place import client_binary
from headrace.databases.postgres.connection import connection_parameters

__all__ = ["HISTORY_IDENTITY", "TABLES", "Pgbench", "Sums", "run_pgbench"]

TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")
HISTORY_IDENTITY = "ALTER TABLE public.pgbench_history REPLICA IDENTITY FULL"
"""The table has no key, so the whole old row identifies a row. pgbench's clients only insert into it."""
RUN_TIMEOUT_S = 600.0  # a run can take minutes on a busy machine

_PROGRESS = re.compile(r"progress: ([0-9.]+) s, ([0-9.]+) tps")
_PROCESSED = re.compile(r"number of transactions actually processed: (\d+)")
# libpq's name of a parameter, and of its environment variable
_VARIABLES = {
    "host": "PGHOST",
    "port": "PGPORT",
    "user": "PGUSER",
    "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
    "sslmode": "PGSSLMODE",
}


def _command(dsn: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """Return how to start pgbench: connection parameters go into its environment, because command lines are public."""
    given = connection_parameters(dsn)
    others = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    variables = {variable: str(given[name]) for name, variable in _VARIABLES.items() if name in given}
    return {"args": [str(client_binary("pgbench")), *arguments], "env": {**others, **variables}}


def run_pgbench(dsn: str, *arguments: str) -> None:
    """Run pgbench to its end.

    Args:
        dsn: connection string of the database.
        arguments: its options.

    Raises:
        ApplyError: it fails.
    """
    done = subprocess.run(
        **_command(dsn, arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise ApplyError(f"pgbench {' '.join(arguments)} failed: {done.stderr[-500:]}")


class Pgbench:
    """One run of pgbench in the background; its progress is in a log.

    Args:
        dsn: connection string of the database.
        arguments: its options.
        log: file for its output.
        wanted: number of transactions that it commits in total; infinite: as many as it reports.
    """

    def __init__(self, dsn: str, *arguments: str, log: Path, wanted: float = math.inf) -> None:
        self._dsn, self._arguments = dsn, arguments
        self.log, self.wanted = log, wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._output: IO[bytes] | None = None

    def start(self) -> Self:
        """Start it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._output = self.log.open("wb")
        self._process = subprocess.Popen(
            **_command(self._dsn, ("-n", "-P", "1", *self._arguments)),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        return self

    def is_done(self) -> bool:
        """Return whether it has ended.

        Raises:
            ApplyError: it failed.
        """
        assert self._process is not None
        return self._has_ended(self._process.poll())

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended.

        Args:
            timeout_s: longest wait, seconds.

        Raises:
            ApplyError: it failed.
        """
        assert self._process is not None
        self._has_ended(self._process.wait(timeout_s))

    def _has_ended(self, code: int | None) -> bool:
        if code:
            raise ApplyError(f"pgbench ended with code {code}: {self._text()[-500:]}", hint=f"see {self.log}")
        return code is not None

    def close(self) -> None:
        """Kill it if it still runs; idempotent."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._output is not None:
            self._output.close()

    def transactions(self) -> int:
        """Return the number of transactions committed so far: precise to about a second, and exact at the end."""
        text = self._text()
        done = _PROCESSED.search(text)
        if done is not None:
            return int(done.group(1))
        total = before = 0.0
        for at, rate in _PROGRESS.findall(text):
            total += float(rate) * (float(at) - before)
            before = float(at)
        return int(min(total, self.wanted))

    def _text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Sums of pgbench's transactions, each of which adds its delta to one account, one branch and one teller.

    Args:
        transactions: number of rows of the history.
        deltas: sum of their deltas.
        accounts: sum of the accounts' balances.
        branches: sum of the branches' balances.
        tellers: sum of the tellers' balances.
    """

    transactions: int
    deltas: int
    accounts: int
    branches: int
    tellers: int

    @classmethod
    def of(cls, connection: Any) -> Self:  # noqa: ANN401 - psycopg's
        """Return the sums of a database."""
        row = connection.execute(
            "SELECT (SELECT count(*) FROM public.pgbench_history),"
            " (SELECT coalesce(sum(delta), 0) FROM public.pgbench_history),"
            " (SELECT coalesce(sum(abalance), 0) FROM public.pgbench_accounts),"
            " (SELECT coalesce(sum(bbalance), 0) FROM public.pgbench_branches),"
            " (SELECT coalesce(sum(tbalance), 0) FROM public.pgbench_tellers)"
        ).fetchone()
        transactions, deltas, accounts, branches, tellers = map(int, row)
        return cls(transactions=transactions, deltas=deltas, accounts=accounts, branches=branches, tellers=tellers)

    def since(self, earlier: Self) -> Sums:
        """Return the sums of what was added after `earlier`, which are sums of the same database."""
        return Sums(
            transactions=self.transactions - earlier.transactions,
            deltas=self.deltas - earlier.deltas,
            accounts=self.accounts - earlier.accounts,
            branches=self.branches - earlier.branches,
            tellers=self.tellers - earlier.tellers,
        )

    def problems(self) -> list[str]:
        """Return the balances that differ from the sum of the deltas, in words."""
        totals = {"accounts": self.accounts, "branches": self.branches, "tellers": self.tellers}
        return [
            f"the balances of {name} make {total}, the deltas {self.deltas}"
            for name, total in totals.items()
            if total != self.deltas
        ]
