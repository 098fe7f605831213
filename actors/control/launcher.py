"""Creates components, each in its process, on its node and with its environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from actors.hosting.processes import factory_of, process_of

if TYPE_CHECKING:
    from actors.hosting.runtime import ActorSystem
    from topology.edits.changes import Component
    from topology.spec import TopologySpec

__all__ = ["Launcher"]


class Launcher:
    """Creates the components of a topology.

    Args:
        actors: runs them.
        environment: passed to every component's process (failpoints).
    """

    def __init__(self, actors: ActorSystem, environment: Mapping[str, str]) -> None:
        self._actors, self._environment = actors, dict(environment)
        self._overrides: dict[str, dict[str, str]] = {}

    def recreate(self, name: str, environment: Mapping[str, str]) -> None:
        """End a component; the next `create` starts it in its own process, with these variables added.

        Args:
            name: full name of the component.
            environment: the variables; empty: the component returns to the process that it shares with others.
        """
        self._overrides[name] = dict(environment)
        self._actors.kill(name)

    def create(self, component: Component, spec: TopologySpec, arguments: Mapping[str, Any]) -> None:
        """Create a component.

        Args:
            component: the component.
            spec: the running topology.
            arguments: arguments of its factory.
        """
        site = spec.site(component.site)
        environment = {**self._environment, **self._overrides.get(component.name, {})}
        differs = any(value != self._environment.get(name, "") for name, value in environment.items())
        self._actors.create(
            component.name,
            factory_of(site, component.kind),
            arguments,
            process=f"recreated:{component.name}" if differs else process_of(spec, component, self._actors.held()),
            state_dir=spec.state_dir,
            node=dict(site.node),
            environment=environment,
        )
