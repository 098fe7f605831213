"""Headrace as a peer of the bench: set up by the command line, started and stopped through its actors."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.runs import SYNCHRONOUS_COMMIT
from benchmarks.servers import Pair, wait_slot_free
from headrace.databases.postgres.catalog.source_tables import slot_name

_TOPOLOGY = """topology: bench
state_dir: {state_dir}
combined: {combined}
sites:
  src: {{database: {{kind: postgres, dsn: "${{BENCH_SOURCE_DSN}}"}}}}
  dst: {{database: {{kind: postgres, dsn: "${{BENCH_DESTINATION_DSN}}"}}}}
replicate:
  - {{schemas: [public], from: src, to: [dst]{ddl}}}
"""
_COMMAND_TIMEOUT_S = 900


class HeadraceTopology:
    """A topology named `bench`, started once; its log writers are stopped while a backlog is written.

    Args:
        folder: of its topology file and state.
        sources: site -> connection string of its database, for each site with a log writer.
        environment: what the topology file refers to.
    """

    name = "headrace"

    def __init__(self, folder: Path, sources: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self.file = folder / "bench.yaml"
        self.state_dir = folder / "state"
        self._sources, self._environment = dict(sources), dict(environment)

    def bring_up(self, text: str) -> None:
        """Bring up this topology with the measured `synchronous_commit`; does nothing if it already runs."""
        text += f"synchronous_commit: {SYNCHRONOUS_COMMIT}\n"
        if self.file.exists() and self.file.read_text(encoding="utf-8") == text:
            return
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(text, encoding="utf-8")
        self.command("up", str(self.file))

    def start(self) -> None:
        """Start the log writers: everything behind them waits for redo."""
        for site in self._sources:
            self._call(f"site:{site}", "start_component")

    def stop(self) -> None:
        """Stop the log writers; returns when their slots are inactive."""
        for site, dsn in self._sources.items():
            self._call(f"site:{site}", "stop_component")
            with psycopg.connect(dsn, autocommit=True) as connection:
                wait_slot_free(connection, slot_name("bench", site))

    def wait_caught_up(self) -> None:
        """Wait until a marker written now is below every low watermark."""
        self.command("wait", str(self.file), "--caught-up", "--timeout", str(_COMMAND_TIMEOUT_S))

    def restart(self) -> float:
        """End the topology and start it again; return the seconds of `headrace up`, until every component runs.

        The log writers must run.
        """
        self._disconnect()
        self.command("down", str(self.file))
        began = time.perf_counter()
        self.command("up", str(self.file))
        return time.perf_counter() - began

    def tear_down(self) -> None:
        """Stop the topology and remove everything it created."""
        self._disconnect()
        self.command("down", str(self.file), "--purge", "--yes")

    @staticmethod
    def _disconnect() -> None:
        if "actors.hosting.runtime" in sys.modules:
            from actors.hosting.runtime import disconnect

            disconnect()  # a process that stays connected to a cluster ends a minute after it

    def roots(self) -> tuple[int, ...]:
        """Return the process ids whose descendants are Headrace's."""
        from actors.cluster.local import LocalCluster

        facts = LocalCluster(self.state_dir).facts()
        return () if facts is None else tuple(process.pid for process in facts.processes)

    def components(self) -> dict[int, str]:
        """Map the process id of every component to its name.

        A shared process has its own name and the number of its components.
        """
        actors = self._actors()
        return {
            actors.pid(next(iter(names))): process if len(names) == 1 else f"{process} ({len(names)} components)"
            for process, names in actors.processes().items()
        }

    def status(self, component: str) -> dict[str, object]:
        """Return a component's status."""
        answer = self._call(component, "status")
        assert isinstance(answer, dict)
        return answer

    def _call(self, component: str, method: str) -> object:
        return self._actors().call(component, method)

    def _actors(self) -> Any:
        from actors.cluster.local import LocalCluster
        from actors.hosting.runtime import connect, prepare_process

        cluster = LocalCluster(self.state_dir)
        address = cluster.address()
        if address is None:
            message = "the bench's Ray cluster does not run"
            raise RuntimeError(message)
        prepare_process(address, cluster.client_environment())
        return connect(address, "bench")

    def command(self, *arguments: str) -> None:
        """Run `headrace` with these arguments; it must succeed."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "headrace"), *arguments],
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S + 60,
            check=False,
        )
        if done.returncode != 0:
            message = (
                f"headrace {arguments[0]} ended with {done.returncode}: {done.stdout[-2000:]} {done.stderr[-2000:]}"
            )
            raise RuntimeError(message)


class HeadracePeer(HeadraceTopology):
    """One way, two sites.

    Args:
        pair: its databases; the tables exist at both sides and are filled at the source.
        folder: of its topology file and state.
    """

    def __init__(self, pair: Pair, folder: Path) -> None:
        super().__init__(
            folder,
            {"src": pair.source},
            {
                "BENCH_SOURCE_DSN": pair.source,
                "BENCH_DESTINATION_DSN": pair.destination,
            },
        )
        self.pair = pair

    def set_up(self, tables: tuple[str, ...]) -> None:  # noqa: ARG002 - the rule takes the whole schema
        """Write the topology, bring it up, copy the tables; returns when it has caught up."""
        self.change()
        self.wait_caught_up()

    def change(self, *, queued: bool = False, is_open: bool = False, has_ddl: bool = False) -> None:
        """Edit the topology, if it differs. The log writer must run.

        Args:
            queued: through queues and a propagation; else with combined capture and apply.
            is_open: no link authenticates or encrypts (`tls: none`).
            has_ddl: DDL is replicated, too (`ddl: true`).
        """
        text = _TOPOLOGY.format(
            state_dir=self.state_dir, combined="never" if queued else "auto", ddl=", ddl: true" if has_ddl else ""
        )
        self.bring_up(text + ("tls: none\n" if is_open else ""))
