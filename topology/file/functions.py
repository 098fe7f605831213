"""The code of a file's functions: its folder, and what custom transformations need from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.base.errors import ConfigError
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.user_code.source import NO_CODE, UserCode, UserFunction, read_folder
from topology.file.document import Path_
from topology.file.handlers import Problem
from topology.file.shape.models import TopologyModel
from topology.spec import TopologySpec

__all__ = ["read_code", "with_functions"]


def read_code(top: TopologyModel, folder: Path) -> tuple[UserCode, list[Problem]]:
    """Read the folder that `code` names.

    Args:
        top: the file.
        folder: the file's folder.

    Returns:
        Its modules, and its problems.
    """
    if top.code is None:
        return NO_CODE, []
    try:
        return read_folder(folder / Path(top.code).expanduser(), top.code), []
    except ConfigError as error:
        return NO_CODE, [(("code",), error.message, error.hint)]


def with_functions(
    spec: TopologySpec, code: UserCode, timeout_s: float, content: dict[str, Any]
) -> tuple[TopologySpec, list[Problem]]:
    """Return the topology with code, version and time limit in its custom transformations.

    Args:
        spec: as read.
        code: the folder's modules.
        timeout_s: limit of one call, seconds.
        content: the file as plain data, for the places of problems.
    """
    reading = _Reading(code, timeout_s)
    spec = replace(
        spec,
        captures=tuple(replace(each, rules=reading.rules(each.rules, is_at_capture=True)) for each in spec.captures),
        propagations=tuple(replace(each, rules=reading.rules(each.rules)) for each in spec.propagations),
        applies=tuple(replace(each, rules=reading.rules(each.rules)) for each in spec.applies),
    )
    places = dict(_places(content, ())) if reading.problems else {}
    return spec, [(places.get(name, ("code",)), error.message, error.hint) for name, error in reading.problems.items()]


@dataclass(slots=True)
class _Reading:
    code: UserCode
    timeout_s: float
    problems: dict[str, ConfigError] = field(default_factory=dict)
    _known: dict[str, tuple[UserFunction, UserCode]] = field(default_factory=dict)

    def rules(self, rules: RuleSet, *, is_at_capture: bool = False) -> RuleSet:
        if not rules.transforms:
            return rules
        return replace(
            rules, include=tuple(self._rule(each, is_at_capture=is_at_capture) for each in rules.include or ())
        )

    def _rule(self, rule: Rule, *, is_at_capture: bool) -> Rule:
        transformation = rule.transformation
        if transformation is None or transformation.custom is None:
            return rule
        return replace(
            rule,
            transformation=replace(
                transformation, custom=self._custom(transformation.custom, is_at_capture=is_at_capture)
            ),
        )

    def _custom(self, custom: CustomTransformation, *, is_at_capture: bool) -> CustomTransformation:
        name = custom.function.name
        if name not in self._known:
            try:
                self._known[name] = (
                    UserFunction(name=name, version=self.code.version_of(name)),
                    self.code.needed_by([name]),
                )
            except ConfigError as error:
                self.problems[name] = error
                self._known[name] = UserFunction(name=name, version=""), NO_CODE
        function, code = self._known[name]
        return replace(custom, function=function, code=code, timeout_s=self.timeout_s, is_at_capture=is_at_capture)


def _places(content: object, path: Path_) -> Iterator[tuple[str, Path_]]:
    """Yield the place where each function of a `transform` is named; the last wins."""
    entries = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in entries:
        if key in ("transform", "function") and isinstance(value, str):
            yield value, (*path, key)
        else:
            yield from _places(value, (*path, key))
