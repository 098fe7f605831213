"""SCNs that the file gives capture processes, and redo that capture processes which are new or moved will find, or not.

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
    """Capture processes that would not find the redo that they are to mine, and SCNs that cannot be had.

    Args:
        before: the topology that was prepared last; None: none was.
        after: the one that is wanted.
        oldest_scn: from where on the redo of a source (its name) can be mined at a site; FIRST_SCN: there is none;
            None: it is not known.
        applied_scn: what an apply process has applied; None: it is not known, or it never ran.
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
    """Whether the site of a capture process had redo of its source.

    One that begins gets the oldest that the source has.
    """
    return capture.site == capture.source or receiver_at(before, capture) is not None


def _changed(earlier: CaptureSpec, capture: CaptureSpec) -> Iterator[Finding]:
    """SCNs in the file are of a capture process that begins."""
    for key, flag in (("first_scn", "--first-scn"), ("start_scn", "--start-scn")):
        old, new = getattr(earlier, key), getattr(capture, key)
        if new not in {old, FIRST_SCN}:
            yield Finding(
                path=f"captures.{capture.name}.{key}",
                problem=f"changes to {scn_text(new)}, and the capture process runs already: the file says where a new"
                " one begins",
                fix=f"leave {key} as it was or out, and run `headrace capture FILE {capture.name} {flag}"
                f" {scn_text(new)}`",
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
    """Apply processes that a capture process is to serve from now on, and that need redo which is not at its site."""
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
