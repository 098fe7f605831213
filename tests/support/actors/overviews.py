"""Overviews and statuses of components, from plain data with only the facts that a test needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.status.component import ComponentStatus
from headrace.status.overview import Overview
from headrace.status.plain import overview_of, status_of

__all__ = ["component_status", "overview_from"]


def overview_from(plain: Mapping[str, Any]) -> Overview:
    """Return an overview of the running topology `t`; the plain data overrides its fields."""
    components = [{"kind": _kind(each["name"]), **each} for each in plain.get("components", ())]
    return overview_of({"topology": "t", "state": "RUNNING", **plain, "components": components})


def component_status(name: str, state: str, **facts: Any) -> ComponentStatus:
    """Return the status of a component of the kind that its name gives."""
    return status_of({"name": name, "kind": _kind(name), "site": "b", "state": state} | facts)


def _kind(name: str) -> str:
    return name.partition(":")[0]
