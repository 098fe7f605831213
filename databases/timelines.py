"""The timelines of a source's log: whether a log that ends on one of them goes on on another.

A promotion of a standby, and a recovery to a point in time, begin a new timeline: the log is the same up to the switch, and another
one after it. What was written on the old timeline after the switch is not in the log of the new one.

    redo on timeline 1 up to 80, the log left timeline 1 at 100    the log goes on, from 80
    redo on timeline 1 up to 130, the log left timeline 1 at 100   the redo log has what the database never had: refused
    redo on timeline 2, the log is on timeline 1                   the database of before the promotion: refused
"""

from __future__ import annotations

from collections.abc import Mapping

from streams.errors import INSTANTIATE_AGAIN, LogGone
from streams.scn import Scn, scn_text

__all__ = ["check_timeline"]


def check_timeline(site: str, *, redo: int, start: Scn, now: int, left: Mapping[int, Scn]) -> None:
    """See that the log of a database continues a redo log.

    Args:
        site: name of the source site, for messages.
        redo: timeline of the redo log; 0: there is none.
        start: where it ends.
        now: timeline of the database's log.
        left: the timelines that this log was on before, with the SCN at which it left each.

    Raises:
        LogGone: it does not.
    """
    if redo in {0, now}:
        return
    switch = left.get(redo)
    if switch is None:
        raise LogGone(
            f"the database of site {site} is on timeline {now}, which does not come from timeline {redo} of its redo log: it is a server"
            " of before a promotion, or one that was promoted beside it",
            hint=f"point the site to the server that was promoted last (a dsn may name all hosts, with target_session_attrs=read-write);"
            f" if there is none, {INSTANTIATE_AGAIN}",
            source=site, redo_timeline=redo, database_timeline=now,
        )
    if start > switch:
        raise LogGone(
            f"the database of site {site} was promoted, or recovered, at SCN {scn_text(switch)} (timeline {now}), and its redo log goes on to"
            f" SCN {scn_text(start)} (timeline {redo}): transactions that committed between them on the server of before were captured,"
            " and the database does not have them",
            hint=f"the destinations may have applied them; {INSTANTIATE_AGAIN}. Name the standby's slot in synchronized_standby_slots of"
            " the source's server: then nothing is captured that the standby does not have",
            source=site, redo_timeline=redo, database_timeline=now, after_scn=switch, through_scn=start,
        )
