"""Actors without Ray: the test scripts what the controller sees of components."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from actors.intermediate_database import IntermediateSite
from headrace.base.errors import PropagationError
from headrace.databases.ports import CapturedTable, Finding, Instantiation, TableShape
from headrace.lcr.batch import TableVersion
from headrace.lcr.table_name import TableName
from topology.edits.receivers import Receivers


class FakeActors:
    """Implements `actors.hosting.runtime.ActorSystem`. A component's status is its entry in `statuses`, plus its fingerprint."""

    def __init__(self) -> None:
        self.running: dict[str, Mapping[str, Any]] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.processes: dict[str, str] = {}  # by component: the process it was created in
        self.created: list[str] = []
        self.killed: list[str] = []
        self.prepared: list[str] = []
        self.new: set[str] = set()  # the new components of the last `prepare`
        self.silent: set[str] = set()
        self.breaks: dict[str, BaseException] = {}  # by method: the error that a call raises
        self.holds_back: set[str] = set()  # components that do not yet take over a changed topology
        self.statuses: dict[str, dict[str, Any]] = {}
        self.findings: dict[str, tuple[Finding, ...]] = {}
        self.identities: dict[str, str] = {}  # of databases, by site
        self.versions: tuple[TableVersion, ...] = ()
        self.domains: tuple[TableShape, ...] = ()
        self.table_findings: dict[str, tuple[Finding, ...]] = {}
        self.ddl_findings: dict[str, tuple[Finding, ...]] = {}
        # of each question: the tables whose DDL is applied, and the source's release
        self.asked_of_ddl: list[tuple[tuple[TableName, ...], int]] = []
        self.uncaptured: dict[str, tuple[str, ...]] = {}
        self.captured: dict[str, tuple[CapturedTable, ...]] = {}
        # by apply process: identities of the tables whose changes it gets
        self.kept: dict[str, tuple[str, ...]] = {}
        self.recorded: dict[str, set[str]] = {}  # by site: apply processes with records there
        self.empty: set[TableName] = set()  # destination tables
        self.instantiations: dict[str, tuple[Instantiation, ...]] = {}  # by apply process
        self.marker = 500  # SCN that sources return for a marker
        self.noted: dict[str, Receivers] = {}  # cleared by tests; `receivers` is what the sites have
        self.receivers: dict[str, Receivers] = {}
        self.calls: list[tuple[str, str]] = []
        self.compared_domains: list[tuple[TableShape, ...]] = []
        self.compared: list[tuple[str, tuple[str, ...]]] = []
        # of each comparison: the tables' names at the source
        self.named_at_source: list[Mapping[TableName, TableName]] = []
        self.identified: list[Mapping[TableName, str]] = []  # of each comparison: the captured tables' identities
        self.oldest: dict[str, int] = {}  # by keeper of redo: the lowest SCN that can be mined
        self.offered: list[Mapping[str, float]] = [{"site_b": 1.0}]  # one entry per living node of the cluster

    def create(
        self,
        name: str,
        factory: str,
        arguments: Mapping[str, Any],
        *,
        process: str,
        state_dir: Path,
        node: Mapping[str, float],
        environment: Mapping[str, str],
    ) -> None:
        if name not in self.running:
            self.running[name] = {"factory": factory, "node": dict(node), **arguments}
            self.environments[name] = dict(environment)
            self.processes[name] = process
            self.created.append(name)
            self.calls.append((name, "create"))

    def names(self) -> set[str]:
        return set(self.running)

    def held(self) -> dict[str, set[str]]:
        return {
            process: {name for name, found in self.processes.items() if found == process and name in self.running}
            for process in self.processes.values()
        }

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 5.0) -> Any:
        if name not in self.running or name in self.silent:
            raise PropagationError(f"{name} does not answer")
        self.calls.append((name, method))
        if method in self.breaks:
            raise self.breaks[method]
        if method == "uncaptured":
            known = {each.identity for noted in arguments[1:] for each in noted.tables}
            ahead = (
                tuple(f"{each.owner}.{each.name}" for each in self.captured.get(name, ()) if each.identity not in known)
                if arguments[1:]
                else ()
            )
            return (*self.uncaptured.get(name, ()), *ahead)
        if method == "captured":
            return self.captured.get(name, ())
        if method == "leave_out":
            self.kept[arguments[0]] = tuple(arguments[1])
            self.recorded.setdefault(name, set()).add(arguments[0])
            return ()
        if method == "leave_out_others":
            self.kept |= dict.fromkeys(self.recorded.get(name, set()) - set(arguments[0]), ())
            return ()
        if method == "instantiations":
            return self.instantiations.get(arguments[0], ())
        if method == "filled":
            return tuple(table for table in arguments[1] if table not in self.empty)
        if method == "note_receivers":
            self.noted[name] = self.receivers[name] = arguments[0]
            return None
        if method in {"end_source", "stop_server"}:
            return () if method == "end_source" else None
        if method == "write_marker":
            return self.marker
        if method == "receivers":
            return self.receivers.get(name, Receivers())
        if method == "status":
            fingerprint = self.running[name]["fingerprint"]
            return {"state": "ENABLED", "ready": True, "fingerprint": fingerprint, **self.statuses.get(name, {})}
        if method in {"stopped", "forget_stops", "delete_spilled", "begin_anew"}:
            spec = self.running[name]["spec"]
            return getattr(IntermediateSite(spec, name.removeprefix("site:"), ""), method)(*arguments)
        if method == "database_identity":
            return self.identities.get(name, name)
        if method == "preflight":
            return self.findings.get(name, ())
        if method == "table_versions":
            return self.versions
        if method == "domain_shapes":
            return self.domains
        if method == "preflight_tables":
            self.compared_domains.append(arguments[5])
            self.compared.append((name, tuple(version.name for version in arguments[0])))
            self.identified.append(arguments[4])
            self.named_at_source.append(arguments[6])
            return self.table_findings.get(name, ())
        if method == "release":
            return 18
        if method == "preflight_ddl":
            self.asked_of_ddl.append((arguments[0], arguments[1]))
            return self.ddl_findings.get(name, ())
        if method == "oldest_scn":
            return self.oldest.get(name, 0)
        if method == "reconfigure" and name in self.holds_back:
            return None
        if method == "reconfigure":
            spec, fingerprint = arguments
            self.running[name] = {**self.running[name], "spec": spec, "fingerprint": fingerprint}
            return None
        assert method == "prepare"
        self.prepared.append(name)
        self.new = set(arguments[1])
        self.uncaptured.pop(name, None)
        return (f"CREATE something AT {name}",)

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        answers: dict[str, Any] = {}
        for name in names:
            try:
                answers[name] = self.call(name, method)
            except PropagationError as error:
                answers[name] = error
        return answers

    def nodes(self) -> list[Mapping[str, float]]:
        return self.offered

    def kill(self, name: str) -> None:
        self.killed.append(name)
        self.running.pop(name, None)

    def clear_away(self) -> None:
        """Do nothing: processes are those of the components here."""

    def end(self, names: Collection[str], *, timeout_s: float) -> None:
        for name in names:
            self.calls.append((name, "end"))
            self.kill(name)
