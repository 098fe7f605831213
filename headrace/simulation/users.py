"""The users of a simulated topology, who commit at random times until the load is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.simulation.operator import Operator
    from headrace.simulation.running import Running

__all__ = ["Users"]

TRANSACTIONS_PER_S = 3.0  # of all users together: enough to fill the small redo logs and queues
_STEP_S = 0.0147  # mean virtual duration of a step with twenty turns


class Users:
    """Users who commit at random times.

    Args:
        sim: the simulation.
        operator: the operator who alters tables before the users write to them.
        seconds: virtual seconds in which they write.

    Attributes:
        left: transactions still to be written.
    """

    def __init__(self, sim: Running, operator: Operator, seconds: float) -> None:
        self._sim, self._operator = sim, operator
        self._wanted = max(1, round(seconds * TRANSACTIONS_PER_S))
        self.left = self._wanted

    @property
    def share_done(self) -> float:
        """Share of the transactions that are written, from 0 to 1."""
        return 1 - self.left / self._wanted

    def write(self) -> None:
        """Let one user commit, at random."""
        sim, rng, workload = self._sim, self._sim.rng, self._sim.workload
        if rng.random() > TRANSACTIONS_PER_S * _STEP_S * sim.running.pace:
            return
        stream = rng.choices(workload.streams, [1 if each.tag is None else 0.3 for each in workload.streams])[0]
        database = sim.databases[stream.site]
        if database.is_down or not database.store.is_reachable:
            return
        self.left -= 1
        kind = rng.random()
        if kind < 0.04:
            database.source.other_activity()
        elif kind < 0.07:
            database.source.write_marker(b"marker")
        else:
            if kind < 0.11:
                self._operator.alter_source(stream)
            changes = workload.next_transaction(stream)
            if stream.tag is None:
                changes += workload.contested.changes(stream.site, database)
            scn = database.commit(stream.tag, changes)
            workload.contested.made(stream.site, database, changes)
            workload.expected.committed(stream.site, scn)
