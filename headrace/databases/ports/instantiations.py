"""Records of tables that were copied to a destination or kept as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.databases.ports.progress import ApplyProgress
    from headrace.lcr.scn import Scn

__all__ = ["AWAITING", "BEGUN", "ROWS_THERE", "ArrivalSeen", "Carried", "Instantiation", "OtherCopy", "PartOf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOf:
    """A partition of a source's table that is copied alone and has its own record.

    Args:
        table: identity of the partitioned table (`CapturedTable.identity`).
        number: the partition's own at the source.
    """

    table: str
    number: int

    @property
    def identity(self) -> str:
        """The identity under which it is recorded."""
        return f"{self.table}/{self.number}"

    @property
    def key(self) -> tuple[str, str]:
        """The key under which what is known of it is found: its name may soon belong to another partition.

        No table has this key.
        """
        return "", str(self.number)

    @classmethod
    def of(cls, identity: str) -> PartOf | None:
        """Return the partition recorded under an identity; None: the identity is a table's."""
        table, _, number = identity.partition("/")
        return cls(table=table, number=int(number)) if number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The part of a copy that another apply process of its site would bring (`spark_apply.copy.ways.shared_tables`).

    Args:
        apply: the other apply process.
        identity: of its source's table (`CapturedTable.identity`).
        scn: of its source: the copy has that table's changes with `commit_scn <= scn`, and no others of it.
    """

    apply: str
    identity: str
    scn: Scn


@dataclass(frozen=True, slots=True, kw_only=True)
class Instantiation:
    """A destination's record of one table's instantiation.

    Args:
        source: the site it was copied from.
        identity: of the table at that site (`CapturedTable.identity`), or of a partition (`PartOf`): one record per
            identity.
        owner, name: the table's name when this was recorded, as LCRs name it.
        scn: changes with `commit_scn <= scn` are in the copy: the instantiation SCN; 0: not known yet.
        state: PENDING, AWAITING (another apply process copies it: the queue keeps the changes after the SCN), COPYING,
            COMPARING, COPIED (equal; later changes are not applied yet), JOINING (later changes are being applied, up
            to `ApplyProgress.ahead_scn`; the low watermark says how far), DONE, KEPT (its rows were kept, only the SCN
            was set), FAILED, or LEFT (it was copied, then its changes were interrupted: its rows are out of date).
        row_count: rows copied (KEPT: not counted, 0).
        digest: of the rows, in the connector's form; empty when not computed.
        problem: why it FAILED; empty otherwise.
        is_remade: the destination's table of this name is another one than when this was recorded: it was dropped and
            created again, or swapped. A record written with True stays with the earlier table; with False, it belongs
            to the current one.
        name_now: current (owner, name) of the destination's table for which this was recorded; None: it was dropped, or
            this is unknown.
        is_gone: that table was dropped; False: it exists, or this is unknown.
    """

    source: str
    identity: str
    owner: str
    name: str
    scn: Scn
    state: str
    row_count: int = 0
    digest: str = ""
    problem: str = ""
    is_remade: bool = False
    name_now: tuple[str, str] | None = None
    is_gone: bool = False

    def may_be(self, owner: str, name: str) -> bool:
        """Whether the destination's table of a name can be the recorded one.

        True also where this is unknown (a dump was restored).

        Args:
            owner: its schema.
            name: its name.
        """
        return not self.is_gone and self.name_now in {None, (owner, name)}

    @property
    def key(self) -> tuple[str, str]:
        """Owner and name of a table, `PartOf.key` of a partition."""
        part = PartOf.of(self.identity)
        return (self.owner, self.name) if part is None else part.key

    @property
    def is_refused(self) -> bool:
        """Whether no row of it was copied, and an operator must act before one is."""
        return self.state == "FAILED" and not self.scn

    @property
    def is_kept(self) -> bool:
        """Whether its rows were kept: they are the operator's own, and never removed without a request."""
        return self.state == "KEPT" or (self.state in {"COPIED", "JOINING"} and not self.digest)


AWAITING = "AWAITING"
"""State of an instantiation that waits for another apply process's copy (`spark_apply.copy.ways.shared_tables`)."""

BEGUN = frozenset({"COPYING", "COMPARING"})
"""States of an instantiation whose copy runs, or was interrupted and will be repeated."""

ROWS_THERE = BEGUN | {"COPIED", "JOINING", "DONE", "KEPT"}
"""States of an instantiation whose rows may be in the table; in FAILED they are if it has an SCN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """The record that another apply process, of any topology, has of a table of the same database.

    Args:
        topology: of the apply process.
        apply: its name.
        source: the site of its rows.
        state: one of `ROWS_THERE`, or FAILED with an SCN: rows of its copy may be in the table. (FAILED without an SCN,
            and LEFT, have none.) Or AWAITING: no row is its own yet.
        scn: as in `Instantiation`, like the fields below.
        row_count: of its copy.
        digest: of its rows.
        identity: of its source's table.
    """

    topology: str
    apply: str
    source: str
    state: str
    scn: Scn
    row_count: int = 0
    digest: str = ""
    identity: str = ""

    def is_of(self, identity: str) -> bool:
        """Whether its rows are from the same table of the same source, captured by any topology.

        Args:
            identity: of the table (`CapturedTable.identity`).
        """
        table = identity.rpartition(".")[0]
        return bool(table) and self.identity.rpartition(".")[0] == table

    @property
    def is_copying(self) -> bool:
        """Whether its copy runs, or was interrupted and will be repeated: the table may be emptied at any moment."""
        return self.state in BEGUN

    @property
    def is_finished(self) -> bool:
        """Whether all its copied or kept rows are present, and later changes are applied."""
        return not self.is_copying and self.state not in {"FAILED", AWAITING}

    @property
    def is_awaiting(self) -> bool:
        """Whether it waits for another apply process's copy and has no rows in the table yet."""
        return self.state == AWAITING

    @property
    def is_of_nothing(self) -> bool:
        """Whether its source had no row of the table when it was recorded: all rows arrive as changes."""
        is_known = self.is_awaiting or (self.is_finished and self.state != "KEPT")
        return is_known and bool(self.digest) and self.row_count == 0

    @property
    def copied_nothing(self) -> bool:
        """Whether its copy had no rows and is finished."""
        return self.is_finished and self.is_of_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSeen:
    """A table that an apply process writes, as a snapshot of its destination shows it.

    Args:
        record: of the table.
        progress: of the apply process, committed together with the rows.
        has_errors: it has error transactions: their changes are not among the rows, but may be later.
    """

    record: Instantiation
    progress: ApplyProgress
    has_errors: bool

    @property
    def scn(self) -> Scn:
        """If settled, the rows have exactly the changes up to here."""
        return max(self.progress.low_watermark, self.record.scn)

    @property
    def is_settled(self) -> bool:
        """Whether everything applied is contiguous: nothing out of order, and no other table joining."""
        return not self.progress.above and self.progress.ahead_scn <= self.progress.low_watermark
