"""Statuses as plain data for `json`, and back.

The border: calls between processes carry plain data, so that a component of another version of Headrace can answer.
`headrace status --json` prints it. All other code reads attributes.
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
"""Status class by kind of component."""


def plain_status(status: ComponentStatus) -> dict[str, Any]:
    """Return a status as plain data for `json`; unknown values are omitted, but null within its parts."""
    return {name: value for name, value in as_json(status).items() if value is not None}


def plain_overview(overview: Overview) -> dict[str, Any]:
    """Return an overview as plain data for `json`; unknown values are null, but omitted in each component's status."""
    plain = as_json(dataclasses.replace(overview, components=()))
    return {**plain, "components": [plain_status(each) for each in overview.components]}


def overview_of(plain: Mapping[str, Any]) -> Overview:
    """Read the output of `plain_overview`, also from another version of Headrace.

    Args:
        plain: the plain data, as for `status_of`.

    Raises:
        ConfigError: the data cannot be read.
    """
    overview = from_json(Overview, {**plain, "components": ()}, is_complete=False)
    return dataclasses.replace(overview, components=tuple(map(status_of, plain.get("components", ()))))


def status_of(plain: Mapping[str, Any]) -> ComponentStatus:
    """Read the output of `plain_status`, also from another version of Headrace.

    Args:
        plain: the plain data. A missing key gets its default, and an unknown key is skipped.

    Returns:
        The status of its kind; a `ComponentStatus` if the data has no key specific to the kind, or cannot be read.
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
