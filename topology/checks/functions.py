"""Users' functions of a topology, by the component that calls them, for `headrace status` and `headrace check`."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.rules.rule import RuleSet
from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.user_code.source import UserFunction
from topology.spec import TopologySpec

__all__ = ["custom_transformations", "functions_of"]


def custom_transformations(spec: TopologySpec) -> Iterator[tuple[str, str, CustomTransformation]]:
    """Yield kind and name of each client with a custom transformation, and the transformation.

    Each pair of client and function comes once.
    """
    for kind, clients in (("capture", spec.captures), ("propagation", spec.propagations), ("apply", spec.applies)):
        for client in clients:
            yield from ((kind, client.name, each) for each in dict.fromkeys(_of(client.rules)))


def functions_of(spec: TopologySpec) -> dict[str, tuple[UserFunction, ...]]:
    """Return the functions that each component calls, transformations before handlers.

    Components that call no function are absent.
    """
    found: dict[str, list[UserFunction]] = {}
    for kind, name, custom in custom_transformations(spec):
        found.setdefault(f"{kind}:{name}", []).append(custom.function)
    for apply in spec.applies:
        for function in apply.handlers.functions():
            found.setdefault(f"apply:{apply.name}", []).append(function)
    return {component: tuple(dict.fromkeys(functions)) for component, functions in found.items()}


def _of(rules: RuleSet) -> Iterator[CustomTransformation]:
    for rule in rules.include or ():
        if rule.transformation is not None and rule.transformation.custom is not None:
            yield rule.transformation.custom
