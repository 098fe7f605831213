"""Overviews and statuses of components, from plain data that says only what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.status.component import ComponentStatus
from headrace.status.overview import Overview
from headrace.status.plain import overview_of, status_of

__all__ = ["component_status", "overview_from"]


def overview_from(plain: Mapping[str, Any]) -> Overview:
    """An overview of topology `t`, which runs, unless the plain data says otherwise."""
    components = [{"kind": _kind(each["name"]), **each} for each in plain.get("components", ())]
    return overview_of({"topology": "t", "state": "RUNNING", **plain, "components": components})


def component_status(name: str, state: str, **facts: Any) -> ComponentStatus:
    """The status of a component of the kind that its name says."""
    return status_of({"name": name, "kind": _kind(name), "site": "b", "state": state} | facts)


def _kind(name: str) -> str:
    return name.partition(":")[0]
