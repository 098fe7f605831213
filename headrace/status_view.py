"""The overview of a topology, for people: one line per flow, one per component."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.console import bytes_text, scn_text, seconds_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["render", "is_healthy", "summary_line"]

# A look older than this says more about the controller than about the topology.
STALE_S = 10.0
_BAD = {"ABORTED", "UNREACHABLE", "RETRYING", "DATABASE DOES NOT ANSWER"}


def is_healthy(overview: Mapping[str, Any]) -> bool:
    """Everything that is wanted runs."""
    return overview["state"] == "RUNNING" and not any(
        component["state"] in _BAD for component in overview["components"]
    )


def render(overview: Mapping[str, Any]) -> RenderableType:
    """The overview as tables."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [_head(overview)]
    if overview["flows"]:
        flows = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("flow", "lag", "applied SCN", "source SCN", "behind", "errors"):
            flows.add_column(column)
        for flow in overview["flows"]:
            flows.add_row(
                f"{flow['source']} -> {flow['destination']} ({flow['apply']})", seconds_text(flow["lag_s"]),
                scn_text(flow["applied_scn"]), scn_text(flow["source_scn"]), bytes_text(flow["scn_gap"]),
                "unknown" if flow["errors"] is None else str(flow["errors"]),
            )
        parts += [flows, Text()]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("component", "site", "state", "throughput", "details"):
        table.add_column(column, overflow="fold")
    for component in overview["components"]:
        state = str(component["state"])
        style = "red" if state in _BAD else "yellow" if state.startswith(("PAUSED", "DISABLED")) else "green"
        table.add_row(
            component["name"], component.get("site", ""), Text(state, style=style), _throughput(component),
            _details(component),
        )
    parts.append(table)
    return Group(*parts)


def summary_line(overview: Mapping[str, Any]) -> str:
    """One line while something is awaited: what is not settled yet."""
    components = overview["components"]
    busy = [f"{c['name']} {c['state'].lower()}" for c in components if c["state"] in _BAD | {"INITIALIZING", "STARTING SPARK"}]
    copying = [
        f"{table['owner']}.{table['name']} {table['state'].lower()} {table['rows']} rows"
        for c in components for table in c.get("instantiation", ()) if table["state"] not in {"DONE", "KEPT"}
    ]
    return f"{overview['state'].lower()}: " + (", ".join(busy + copying) or "settled")


def _head(overview: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    head = Text(f"topology {overview['topology']}: {overview['state']}\n", style="bold")
    age_s = time.time() - overview["at_us"] / 1e6
    if overview["at_us"] and age_s > STALE_S:
        head.append(f"as of {seconds_text(age_s)} ago\n", style="yellow")
    if "problem" in overview:
        head.append(f"{overview['problem']}\n", style="red")
    return head


def _throughput(component: Mapping[str, Any]) -> str:
    parts = []
    if "transactions_per_s" in component:
        parts.append(f"{component['transactions_per_s']:.0f} tx/s")
    if "rows_per_s" in component:
        parts.append(f"{component['rows_per_s']:.0f} rows/s")
    elif "bytes_per_s" in component:
        parts.append(f"{bytes_text(int(component['bytes_per_s']))}/s")
    return " ".join(parts)


def _details(component: Mapping[str, Any]) -> str:
    parts = [str(component["problem"])] if component.get("problem") else []
    parts += [f"{component['database_problem']}"] if component.get("database_problem") else []
    if component.get("unmatched_rules"):
        parts.append(f"no table matches {', '.join(component['unmatched_rules'])}")
    if component.get("uncaptured_tables"):
        parts.append(f"created since then and not captured yet: {', '.join(component['uncaptured_tables'])}; fix: headrace up")
    known = (
        ("redo_bytes", "redo {}", bytes_text), ("source_retained_bytes", "WAL retained {}", bytes_text),
        ("redo_scn", "redo to {}", scn_text), ("captured_scn", "captured to {}", scn_text),
        ("required_checkpoint_scn", "needs redo from {}", scn_text), ("memory_bytes", "memory {}", bytes_text),
        ("spill_bytes", "spilled {}", bytes_text), ("through_scn", "to {}", scn_text),
        ("low_watermark_scn", "applied to {}", scn_text), ("errors", "errors {}", str), ("detail", "{}", str),
    )
    for key, words, text in known:
        value = component.get(key)
        if value:
            parts.append(words.format(text(value)))
    error = component.get("last_error")
    if error and component["state"] in _BAD:
        parts.append(f"{error['error']}: {error['message']}" + (f"; fix: {error['hint']}" if error["hint"] else ""))
    elif component.get("errors_total"):
        parts.append(f"retried {component['errors_total']}")
    return ", ".join(parts)
