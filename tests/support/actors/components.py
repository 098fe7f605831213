"""Scripted components, and the records that their process reads."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.hosting.components import Components, Record
from actors.hosting.host import Host
from headrace.base.errors import BugError, DatabaseUnavailable
from headrace.status.component import ComponentStatus

__all__ = ["FakeRecords", "MODULE", "Part", "RELEASE", "build", "goes_on", "wait_for"]

MODULE = __name__
RELEASE = threading.Event()  # set at the end of the test; hanging calls wait for it


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus(ComponentStatus):
    steps: int = 0


class Part(Host):
    """A component that follows its script `say`."""

    kind = "part"

    def __init__(self, state_dir: Path, name: str, say: str) -> None:
        super().__init__(name, state_dir)
        self.say = say
        self.steps = 0

    def step(self) -> float:
        self.steps += 1
        if self.say == "raise":
            raise DatabaseUnavailable("no")
        if self.say == "fail":
            raise BugError("no")
        if self.say in {"hang", "hang in a function"}:
            RELEASE.wait()
        return 0.005

    def late_call(self) -> str:
        return "own:mask has not ended" if self.say == "hang in a function" else ""

    def details(self) -> PartStatus:
        if self.say == "hang in status":
            RELEASE.wait()
        return PartStatus(name=self.name, steps=self.steps)


def build(state_dir: str, name: str, say: str) -> Part:
    if say == "cannot be built":
        message = "missing"
        raise ValueError(message)
    return Part(Path(state_dir), name, say)


class FakeRecords:
    """Implements `actors.hosting.components.Records`."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.records: dict[str, Record | None] = {}
        self.creations = 0

    def create(self, name: str, say: str = "run") -> None:
        self.creations += 1
        self.records[name] = Record(
            creation=str(self.creations),
            factory=f"{MODULE}:build",
            state_dir=str(self.state_dir),
            arguments={"state_dir": str(self.state_dir), "name": name, "say": say},
        )

    def names(self) -> list[str]:
        return sorted(self.records)

    def get(self, component: str) -> Record | None:
        return self.records.get(component)

    def ended(self, component: str) -> None:
        if self.records.get(component) is None:  # otherwise it was created again meanwhile
            self.records.pop(component, None)


def wait_for(holds: Any) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def goes_on(components: Components, name: str) -> None:
    """Wait until the component takes further steps in its present life."""
    wait_for(lambda: components.call(name, "status")["steps"] > 0)  # it may not have started yet
    before = components.call(name, "status")
    wait_for(lambda: components.call(name, "status")["steps"] > before["steps"] + 2)
    assert components.call(name, "status")["opens_total"] == before["opens_total"] == 1
