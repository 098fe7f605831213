"""Timelines of a source's log: whether a log on one timeline continues a redo log from another one.

A standby's promotion and a recovery to a point in time begin a new timeline: the log is the same up to the switch and
different after it. What was written on the old timeline after the switch is not in the log of the new one.

    redo on timeline 1 up to 80, the log left timeline 1 at 100    the log continues, from 80
    redo on timeline 1 up to 130, the log left timeline 1 at 100   the redo log has what the database never had: refused
    redo on timeline 2, the log is on timeline 1                   the database from before the promotion: refused
    redo on timeline 2, which left 1 at 100; the log is on a       another standby, promoted in parallel: both call their
    timeline 2 too, which left 1 at 120                            timeline 2. Refused

Two standbys promoted at exactly the same SCN have the same history and cannot be distinguished by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.errors import INSTANTIATE_AGAIN, LOST_AT_SOURCE, LogGone
from headrace.databases.ports import StreamOptions
from headrace.lcr.scn import Scn, scn_text

__all__ = ["check_history", "check_timeline", "is_of_one_history"]


def check_timeline(site: str, *, redo: int, start: Scn, now: int, left: Mapping[int, Scn]) -> None:
    """Check that the log of a database continues a redo log.

    Args:
        site: name of the source site, for messages.
        redo: timeline of the redo log; 0: no redo log exists.
        start: end of the redo log.
        now: timeline of the database's log.
        left: earlier timelines of this log, with the SCN at which it left each.

    Raises:
        LogGone: the log does not continue it.
    """
    if redo in {0, now}:
        return
    switch = left.get(redo)
    if switch is None:
        raise LogGone(
            f"the database of site {site} is on timeline {now}, which does not come from timeline {redo} of its redo"
            " log: it is a server from before a promotion, or one that was promoted in parallel",
            hint="point the site to the server that was promoted last (a dsn may name all hosts, with"
            f" target_session_attrs=read-write); if there is none, {LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}",
            source=site,
            redo_timeline=redo,
            database_timeline=now,
        )
    if start > switch:
        raise LogGone(
            f"the database of site {site} was promoted, or recovered, at SCN {scn_text(switch)} (timeline {now}), and"
            " its redo log goes on to"
            f" SCN {scn_text(start)} (timeline {redo}): transactions that committed between them on the earlier"
            " server were captured, and the database does not have them",
            hint=f"{LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}. Name the standby's slot in"
            " synchronized_standby_slots of the source's server: then nothing is captured that the standby does not"
            " have",
            source=site,
            redo_timeline=redo,
            database_timeline=now,
            after_scn=switch,
            through_scn=start,
        )


def is_of_one_history(earlier: StreamOptions, later: StreamOptions) -> bool:
    """Whether two pieces can be of one log: timelines are numbered, and two servers can use the same number.

    Args:
        earlier: of a piece of the log; an unknown history contradicts nothing.
        later: of a later piece.
    """
    return later.timeline >= earlier.timeline and _fork(earlier, later) is None


def check_history(site: str, *, redo: StreamOptions, start: Scn, now: StreamOptions) -> None:
    """Check that a log is not of another server whose timeline has the same number.

    Args:
        site: name of the source site, for messages.
        redo: of the redo log's newest segment.
        start: end of the redo log.
        now: of the database's log; `check_timeline` did not refuse it.

    Raises:
        LogGone: the two logs left the same timeline at different SCNs.
    """
    fork = _fork(redo, now)
    if fork is None:
        return
    timeline, ours, theirs = fork
    forked = ours if theirs is None else min(ours, theirs)
    words = "never left it" if theirs is None else f"left it at SCN {scn_text(theirs)}"
    raise LogGone(
        f"the database of site {site} is another server than the one whose log the redo log holds, though both are on a"
        f" timeline {redo.timeline}: the redo log left "
        f"timeline {timeline} at SCN {scn_text(ours)}, the database {words}. Two standbys were promoted beside each"
        f" other; transactions after SCN {scn_text(forked)} and up to {scn_text(start)} were captured from the other"
        " one",
        hint=f"point the site back to the server that was captured; if it is gone, {LOST_AT_SOURCE}: {INSTANTIATE_AGAIN}",
        source=site,
        redo_timeline=redo.timeline,
        database_timeline=now.timeline,
        after_scn=forked,
        through_scn=start,
    )


def _fork(earlier: StreamOptions, later: StreamOptions) -> tuple[int, Scn, Scn | None] | None:
    """Return the first timeline that two logs left at different SCNs, and these SCNs.

    None: no such timeline, or one history is unknown.
    """
    known = dict(later.switches)
    if not known and later.timeline > 1:
        return None
    return next(
        ((timeline, scn, known.get(timeline)) for timeline, scn in earlier.switches if known.get(timeline) != scn), None
    )
