"""Statuses as plain data for `json`, and back.

The border: calls between processes carry plain data, so that a component of another version of Headrace can answer, and
`headrace status --json` prints it. Everything else reads attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headrace.base.errors import ConfigError
from headrace.base.plain_data import as_json, from_json
from headrace.status.applies import ApplyStatus
from headrace.status.captures import CaptureStatus
from headrace.status.component import ComponentStatus
from headrace.status.controllers import ControllerStatus
from headrace.status.overview import Overview
from headrace.status.propagations import PropagationStatus
from headrace.status.queues import QueueStatus
from headrace.status.redo import RedoReceiverStatus
from headrace.status.sites import SiteStatus
from headrace.status.sparks import SparkStatus

__all__ = ["KINDS", "overview_of", "plain_overview", "plain_status", "status_of"]

KINDS: dict[str, type[ComponentStatus]] = {
    "site": SiteStatus,
    "redo": RedoReceiverStatus,
    "capture": CaptureStatus,
    "queue": QueueStatus,
    "propagation": PropagationStatus,
    "apply": ApplyStatus,
    "spark": SparkStatus,
    "controller": ControllerStatus,
}
"""By kind of component, its status."""


def plain_status(status: ComponentStatus) -> dict[str, Any]:
    """A status as plain data for `json`; what is unknown of the component is left out, and null within its parts."""
    return {name: value for name, value in as_json(status).items() if value is not None}


def plain_overview(overview: Overview) -> dict[str, Any]:
    """An overview as plain data for `json`; what is unknown is null, but left out of each component's."""
    plain = as_json(dataclasses.replace(overview, components=()))
    return {**plain, "components": [plain_status(each) for each in overview.components]}


def overview_of(plain: Mapping[str, Any]) -> Overview:
    """Read what `plain_overview` made, or that of another version of Headrace.

    Args:
        plain: the plain data, see `status_of`.

    Raises:
        ConfigError: it cannot be read.
    """
    overview = from_json(Overview, {**plain, "components": ()}, is_complete=False)
    return dataclasses.replace(overview, components=tuple(map(status_of, plain.get("components", ()))))


def status_of(plain: Mapping[str, Any]) -> ComponentStatus:
    """Read what `plain_status` made, or that of another version of Headrace.

    Args:
        plain: the plain data. What it does not say has its default, and what this version does not know is left out.

    Returns:
        The status of its kind; a `ComponentStatus` where nothing is said that only this kind has, or that cannot be read.
    """
    kind = KINDS.get(str(plain.get("kind")), ComponentStatus)
    common = {field.name for field in dataclasses.fields(ComponentStatus)}
    if not any(field.name in plain for field in dataclasses.fields(kind) if field.name not in common):
        kind = ComponentStatus
    name, state = str(plain.get("name", "")), str(plain.get("state", ""))
    for each in (kind, ComponentStatus):
        with suppress(ConfigError):
            return from_json(each, {"name": name, **plain}, is_complete=False)
    return ComponentStatus(name=name, kind=str(plain.get("kind", "")), site=str(plain.get("site", "")), state=state)
