"""Report of a run of chaos: as text for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.chaos.invariants import INVARIANTS, Violated
from headrace.commands.verification import comparison_line
from headrace.console.output import seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["Fired", "Report", "rendered"]


@dataclass(slots=True, kw_only=True)
class Fired:
    """Result of one fault.

    Args:
        number: its number in the schedule.
        action: name of the action.
        target: its target.
        seconds: planned time in force, in seconds.
        evidence: the proof that it fired; empty: it has not.
        problem: why it has not fired.
        in_force_s: seconds from its beginning until it was undone.
        healed_s: seconds from its beginning until everything was healed; None: it never was.
        unhealed: what was missing then.
    """

    number: int
    action: str
    target: str
    seconds: float
    evidence: str = ""
    problem: str = ""
    in_force_s: float = 0.0
    healed_s: float | None = None
    unhealed: str = ""


@dataclass(slots=True)
class Report:
    """Results of a run; `is_fine` is the verdict."""

    topology: str = ""
    seed: int = 0
    faults: list[Fired] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    violated: list[Violated] = field(default_factory=list)
    comparisons: list[dict[str, Any]] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    written: int = 0
    """Number of transactions that the load made."""
    unlinked: list[str] = field(default_factory=list)
    """Links that did not go through their proxies in time."""

    @property
    def fired(self) -> list[Fired]:
        """The faults that fired."""
        return [fault for fault in self.faults if fault.evidence]

    @property
    def unhealed(self) -> str:
        """What has not healed; empty: everything has."""
        return "; ".join(f"{each.action} {each.target}: {each.unhealed}" for each in self.faults if each.unhealed)

    @property
    def is_identical(self) -> bool:
        """Whether every table was compared and is the same everywhere, with every acknowledged transaction."""
        return bool(self.comparisons) and all(each["equal"] for each in self.comparisons) and not self.differences

    @property
    def is_fine(self) -> bool:
        """Whether a fault fired, everything healed, every invariant held, and the contents are identical."""
        return bool(self.fired) and not self.unhealed and not self.violated and self.is_identical

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--json`."""
        return {
            "topology": self.topology,
            "seed": self.seed,
            "fine": self.is_fine,
            "identical": self.is_identical,
            "faults": [asdict(each) for each in self.faults],
            "checked": self.checked,
            "violated": [asdict(each) for each in self.violated],
            "tables": self.comparisons,
            "differences": self.differences,
            "written": self.written,
            "unlinked": self.unlinked,
        }


def rendered(report: Report) -> RenderableType:
    """Return the report for people: the faults, then the invariants and comparisons.

    Args:
        report: of a run that has ended.
    """
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("#", "fault", "target", "healed after", "evidence"):
        table.add_column(column, overflow="fold")
    for fault in report.faults:
        healed = Text("never", style="red") if fault.healed_s is None else Text(seconds_text(fault.healed_s))
        evidence = Text(fault.evidence) if fault.evidence else Text(f"did not fire: {fault.problem}", style="yellow")
        table.add_row(str(fault.number), fault.action, fault.target, healed, evidence)
    return Group(table, Text(), *(Text(line, style=style) for line, style in _lines(report)))


def _lines(report: Report) -> list[tuple[str, str]]:
    lines = [(f"link did not use its proxy in time: {name}", "yellow") for name in report.unlinked]
    for key, words in INVARIANTS.items():
        found = [each for each in report.violated if each.invariant == key]
        looked = f"{words}: looked at {report.checked.get(key, 0)} times"
        lines.append((looked, "") if not found else (f"{looked}, violated {len(found)} times", "red"))
        lines += [
            (f"  {each.component}: {each.problem}" + (f" (during {each.during})" if each.during else ""), "red")
            for each in found
        ]
    lines += [(f"not healed: {report.unhealed}", "red")] if report.unhealed else []
    lines += [(comparison_line(each), "" if each["equal"] else "red") for each in report.comparisons]
    lines += [(difference, "red") for difference in report.differences]
    if report.written:
        lines.append(
            (f"the load wrote {report.written} transactions; each is there exactly once", "")
            if not report.differences
            else (f"the load wrote {report.written} transactions", "")
        )
    healed = [fault.healed_s for fault in report.fired if fault.healed_s is not None]
    longest = f", the slowest healed after {seconds_text(max(healed))}" if healed else ""
    verdict = (
        "every invariant holds, and the contents are identical"
        if report.is_fine
        else "NOT FINE"
        if report.fired
        else "nothing fired: nothing is proven"
    )
    lines.append(
        (
            f"seed {report.seed}: {len(report.fired)} of {len(report.faults)} faults fired{longest}: {verdict}",
            "bold" if report.is_fine else "bold red",
        )
    )
    return lines
