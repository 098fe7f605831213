"""The combinations of docs/how/conflicts.md: those that make sites converge, and those that do not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from headrace.rules.conflict_handlers import ConflictHandler
from tests.support.histories.concurrent_writes import Combination
from tests.support.histories.conflicts import by_time, handler

DOCUMENT = Path(__file__).parents[3] / "docs" / "how" / "conflicts.md"
MAXIMUM, MINIMUM = handler("maximum", by="t"), handler("minimum", by="t")
INSERTS = (handler("maximum", by="t", on="insert_exists"), handler("overwrite", on="update_missing"))
DELETE_WINS = (
    handler("overwrite", on="delete_differs"),
    handler("discard", on="delete_missing"),
    handler("discard", on="update_missing"),
)
UPDATE_WINS = (
    handler("discard", on="delete_differs"),
    handler("discard", on="delete_missing"),
    handler("overwrite", on="update_missing"),
)
PRIORITY = ("dbs1", "dbs2", "dbs3")


def everywhere(*handlers: ConflictHandler):
    return lambda site: handlers


def _three(combination: Combination) -> Combination:
    return replace(combination, sites=3)


def _in_part(combination: Combination) -> Combination:
    """Let users also change some columns of a row."""
    return (
        replace(combination, writes=(*combination.writes, "set-a", "set-b"))
        if "update" in combination.writes
        else combination
    )


_MAXIMUM = Combination(name="maximum, always rising", handlers=everywhere(MAXIMUM), writes=("update",))
_MINIMUM = Combination(name="minimum, always falling", handlers=everywhere(MINIMUM), writes=("update",), falls=True)
_INSERTS = Combination(
    name="maximum with insert_exists: maximum and update_missing: overwrite",
    handlers=everywhere(MAXIMUM, *INSERTS),
    writes=("update", "update", "insert"),
    own_keys=False,
)
_DELTA = Combination(name="delta", handlers=everywhere(handler("delta", "n")), writes=("add",))
_BOTH = Combination(
    name="delta of one list beside maximum of another",
    handlers=everywhere(handler("maximum", "a", "b", "t", "u", by="t"), handler("delta", "n")),
    writes=("update", "add"),
)
_DELETE_WINS = Combination(
    name="maximum, delete wins", handlers=everywhere(MAXIMUM, *DELETE_WINS), writes=("update", "update", "delete")
)


def _priority(name: str, *order: str, alone: bool = False) -> Combination:
    """Return a combination with one list of all columns, which all changes write; `alone`: a list per changed column."""
    lists = [("a",), ("b",), ("t",), ("u",)] if alone else [()]
    handlers = [handler("site_priority", *each, priority=order) for each in lists]
    return Combination(
        name=name, handlers=everywhere(*handlers), writes=("update", "set-a", "set-b") if alone else ("update",)
    )


_PRIORITY = _priority("site_priority, values never come again", *PRIORITY[:2])
_PRIORITY_ALONE = _priority("site_priority, a list for each column, values never come again", *PRIORITY[:2], alone=True)
_UPDATE_WINS = Combination(
    name="maximum, update wins", handlers=everywhere(MAXIMUM, *UPDATE_WINS), writes=("update", "update", "delete")
)


def _latest(name: str, *writes: str, tombstones: bool) -> Combination:
    handlers, times = by_time(*PRIORITY, tombstones=tombstones)
    return Combination(name=name, handlers=everywhere(*handlers), times=times, writes=writes, own_keys=False)


_LATEST = _latest("latest_timestamp", "update", "update", "insert", tombstones=False)
_TOMBSTONES = _latest(
    "latest_timestamp with tombstones", "update", "update", "insert", "delete", "move", tombstones=True
)

_EVERY_PART = (
    _MAXIMUM,
    _three(_MAXIMUM),
    _MINIMUM,
    _three(_MINIMUM),
    _INSERTS,
    _three(_INSERTS),
    _DELTA,
    _three(_DELTA),
    _BOTH,
    _three(_BOTH),
    _DELETE_WINS,
    _three(_DELETE_WINS),
    replace(
        _DELETE_WINS, name="maximum, delete wins, keys inserted once", writes=("update", "update", "delete", "insert")
    ),
    _LATEST,
    _three(_LATEST),
    _TOMBSTONES,
    _three(_TOMBSTONES),
    # Repeated values hide nothing: times are compared, not values.
    replace(_TOMBSTONES, name="latest_timestamp with tombstones, values come again", repeats=True),
    replace(_TOMBSTONES, name="latest_timestamp with tombstones, values come again", repeats=True, sites=3),
)
CONVERGENT = (*map(_in_part, _EVERY_PART), _PRIORITY, _PRIORITY_ALONE)

DIVERGENT = (
    replace(_MAXIMUM, name="no handler", handlers=everywhere()),
    replace(_MAXIMUM, name="overwrite at every site", handlers=everywhere(handler("overwrite"))),
    replace(_MAXIMUM, name="discard at every site", handlers=everywhere(handler("discard"))),
    replace(_MAXIMUM, name="maximum, values come again", repeats=True),
    replace(_MINIMUM, name="minimum, rising", falls=False),
    replace(
        _MAXIMUM, name="maximum without the other columns", handlers=everywhere(handler("maximum", "a", "t", by="t"))
    ),
    replace(_PRIORITY, name="site_priority, values come again", repeats=True),
    replace(_PRIORITY, name="site_priority, some columns of a list change", writes=("update", "set-a", "set-b")),
    replace(
        _PRIORITY,
        name="site_priority at three sites",
        sites=3,
        handlers=everywhere(handler("site_priority", priority=PRIORITY)),
    ),
    _UPDATE_WINS,
    replace(
        _INSERTS,
        name="maximum, delete wins, deleted keys come again",
        handlers=everywhere(MAXIMUM, INSERTS[0], *DELETE_WINS),
        writes=("update", "insert", "delete"),
    ),
    replace(
        _DELETE_WINS,
        name="maximum, delete wins, inserts at three sites",
        sites=3,
        writes=("update", "insert", "delete"),
    ),
    replace(_INSERTS, name="maximum with key updates", writes=("update", "move")),
    _latest("latest_timestamp without tombstones, deletes", "update", "update", "delete", tombstones=False),
    _latest("latest_timestamp without tombstones, key updates", "update", "move", tombstones=False),
    replace(_latest("latest_timestamp, a clock is set back", "update", tombstones=True), waits=False),
    replace(_latest("latest_timestamp over a hub", "update", "update", "insert", tombstones=True), sites=3, hub=True),
)

# Methods without times: each two neighbours act as two sites, and to a spoke the hub's applied changes are the hub's
# writes.
OVER_A_HUB = (
    *(
        replace(each, sites=3, hub=True)
        for each in CONVERGENT
        if each.sites == 2 and each.times is None and each not in {_PRIORITY, _PRIORITY_ALONE}
    ),
    *(
        replace(
            _priority(
                f"site_priority{', a list for each column' if alone else ''} {' before '.join(order)}",
                *order,
                alone=alone,
            ),
            sites=3,
            hub=True,
        )
        for order in (("dbs1", "dbs2", "dbs3"), ("dbs2", "dbs1", "dbs3"), ("dbs2", "dbs3", "dbs1"))
        for alone in (False, True)
    ),
)


def named(combination: Combination) -> str:
    return f"{combination.name} ({combination.sites} sites)"


def documented() -> dict[str, list[str]]:
    """Return the counter-examples of the document, by combination."""
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?P<name>[^|]+?) \| (?P<sites>\d) \| (?P<steps>`[^|]+`) \| [^|]+ \|$", text, re.MULTILINE)
    return {
        f"{name} ({sites} sites)": [step.strip() for step in steps.replace("`", "").split(";")]
        for name, sites, steps in rows
    }
