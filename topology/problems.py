"""Problems of a topology, all reported together, each with its fix."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from headrace.base.errors import ConfigError, counted
from headrace.databases.ports import Finding

__all__ = ["TopologyError", "as_line", "nearest"]


class TopologyError(ConfigError):
    """An unusable topology file. The message lists every problem, and `findings` has them as data.

    Args:
        message: one sentence that names the file, then one line per problem.
        findings: the problems in the order of the file.
        hint: as in `HeadraceError`.
        context: as in `HeadraceError`.
    """

    code = "HDR-1001"
    fix = "Correct every problem that is listed, then run `headrace check FILE`."
    is_finding = True

    def __init__(
        self, message: str, *, findings: tuple[Finding, ...] = (), hint: str = "", **context: str | int
    ) -> None:
        super().__init__(message, hint=hint, **context)
        self.findings = findings

    def __reduce__(self) -> tuple[Any, ...]:
        context: dict[str, Any] = dict(self.context)
        build = functools.partial(type(self), findings=self.findings, hint=self.hint, **context)
        return build, self.args

    @classmethod
    def of(cls, file: str, findings: Iterable[Finding]) -> TopologyError:
        """Make the error for a topology file with problems.

        Args:
            file: path of the file, as the operator gave it.
            findings: the problems, in the order in which they are shown.
        """
        findings = tuple(findings)
        lines = "".join(f"\n  {as_line(finding)}" for finding in findings)
        return cls(
            f"{file}: {counted(len(findings), 'problem')}{lines}", findings=findings, file=file, problems=len(findings)
        )


def as_line(finding: Finding) -> str:
    """Format a finding as `path: what is wrong: how to fix it`."""
    return f"{finding.path}: {finding.problem}: {finding.fix}"


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest a known name in place of one that does not exist.

    Args:
        name: what the file or the command line says.
        known: the names that are valid there.

    Returns:
        One sentence: the nearest of the known names, or all of them when none is near.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known here: {', '.join(names)}" if names else "none is known here"
