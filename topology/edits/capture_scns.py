"""SCNs that the file gives capture processes, and whether new or moved capture processes find their redo.

Source: Oracle Streams Concepts and Administration 11.2, "First SCN and Start SCN Specifications During Capture Process
Creation".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.databases.ports import Finding
from headrace.lcr.scn import FIRST_SCN, Scn, scn_text
from topology.routing.downstream import receiver_at
from topology.routing.ways import ways_to
from topology.spec import ApplySpec, CaptureSpec, TopologySpec

__all__ = ["scn_findings"]


def scn_findings(
    before: TopologySpec | None,
    after: TopologySpec,
    *,
    oldest_scn: Callable[[str, str], Scn | None],
    applied_scn: Callable[[ApplySpec], Scn | None],
) -> tuple[Finding, ...]:
    """Return findings for capture processes whose redo is missing, and for SCNs that cannot take effect.

    Args:
        before: the topology that was prepared last; None: none was.
        after: the wanted topology.
        oldest_scn: the lowest SCN from which a source's redo (by name) can be mined at a site; FIRST_SCN: no redo
            there; None: unknown.
        applied_scn: the applied SCN of an apply process; None: unknown, or it never ran.
    """
    known = {} if before is None else {each.name: each for each in before.captures}
    found: list[Finding] = []
    for capture in after.captures:
        earlier = known.get(capture.name)
        if earlier is not None and (earlier.site, earlier.source) == (capture.site, capture.source):
            found += _changed(earlier, capture)
            continue
        if before is None and not (capture.first_scn or capture.start_scn):
            continue
        site = capture.site if before is None or _keeps(before, capture) else capture.source
        oldest = oldest_scn(capture.source, site)
        found += _new(capture, oldest)
        if before is not None and oldest is not None:
            found += _gone(before, after, capture, site, oldest, applied_scn)
    return tuple(found)


def _keeps(before: TopologySpec, capture: CaptureSpec) -> bool:
    """Return whether the site of a capture process had redo of its source.

    A new site gets the oldest redo that the source has.
    """
    return capture.site == capture.source or receiver_at(before, capture) is not None


def _changed(earlier: CaptureSpec, capture: CaptureSpec) -> Iterator[Finding]:
    """Report changed SCNs of a running capture process: the file gives the SCNs of a new one."""
    for key, flag in (("first_scn", "--first-scn"), ("start_scn", "--start-scn")):
        old, new = getattr(earlier, key), getattr(capture, key)
        if new not in {old, FIRST_SCN}:
            yield Finding(
                path=f"captures.{capture.name}.{key}",
                problem=f"changes to {scn_text(new)}, and the capture process runs already: the file says where a new"
                " one begins",
                fix=f"restore or remove {key}, and run `headrace capture FILE {capture.name} {flag} {scn_text(new)}`",
            )


def _new(capture: CaptureSpec, oldest: Scn | None) -> Iterator[Finding]:
    for key in ("first_scn", "start_scn"):
        scn = getattr(capture, key)
        if scn != FIRST_SCN and oldest is not None and (oldest == FIRST_SCN or scn < oldest):
            begins = f"begins at {scn_text(oldest)}" if oldest else "has not begun"
            yield Finding(
                path=f"captures.{capture.name}.{key}",
                problem=f"is {scn_text(scn)}, and the redo of {capture.source} that it would mine {begins}",
                fix=f"leave {key} out: a new capture process begins with the oldest redo there is",
            )


def _gone(
    before: TopologySpec,
    after: TopologySpec,
    capture: CaptureSpec,
    site: str,
    oldest: Scn,
    applied_scn: Callable[[ApplySpec], Scn | None],
) -> Iterator[Finding]:
    """Yield apply processes that a capture process will serve, and that need redo which its site does not have."""
    served = {each.name for each in before.applies}
    for apply in after.applies:
        is_served = any(way.clients[0] == capture for way in ways_to(after, apply))
        applied = applied_scn(apply) if apply.name in served and apply.source == capture.source and is_served else None
        if applied is not None and FIRST_SCN < applied < oldest:
            yield Finding(
                path=f"captures.{capture.name}",
                problem=f"would mine the redo of {capture.source} at {site}, which begins at SCN {scn_text(oldest)},"
                f" and apply process {apply.name} has applied only up to {scn_text(applied)}: the changes in between"
                " would be missing, and it would be refused",
                fix=f"wait until {apply.name} has caught up (`headrace wait FILE --caught-up`) and run `headrace up`"
                " again; checkpoint_retention_time of the capture processes that mine there now keeps redo longer",
            )
