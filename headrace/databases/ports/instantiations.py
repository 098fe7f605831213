"""What a destination keeps of the tables that were copied to it, or kept as they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.databases.ports.progress import ApplyProgress
    from headrace.lcr.scn import Scn

__all__ = ["AWAITING", "BEGUN", "ROWS_THERE", "ArrivalSeen", "Carried", "Instantiation", "OtherCopy", "PartOf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOf:
    """A partition of a source's table that is copied alone, and has a record of its own.

    Args:
        table: identity of the partitioned table (`CapturedTable.identity`).
        number: the partition's own at the source.
    """

    table: str
    number: int

    @property
    def identity(self) -> str:
        """Under which it is recorded."""
        return f"{self.table}/{self.number}"

    @property
    def key(self) -> tuple[str, str]:
        """What is known of it is found by this: its name may be another partition's by tomorrow.

        No table has it as its name.
        """
        return "", str(self.number)

    @classmethod
    def of(cls, identity: str) -> PartOf | None:
        """The partition that is recorded under an identity; None: a table is."""
        table, _, number = identity.partition("/")
        return cls(table=table, number=int(number)) if number else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What a copy has of the changes that another apply process of its site brings (`spark_apply.copy.ways.shared_tables`).

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
    """What is known at a destination about one table's instantiation.

    Args:
        source: the site it was copied from.
        identity: which table of that site it is (`CapturedTable.identity`), or which partition (`PartOf`): it is
            recorded once per identity.
        owner, name: the table, as LCRs name it; what it was called when this was recorded.
        scn: changes with `commit_scn <= scn` are in the copy: the instantiation SCN; 0: not known yet.
        state: PENDING, AWAITING (another apply process copies it: the queue keeps the changes behind the SCN), COPYING,
            COMPARING, COPIED (equal; later changes are not applied yet), JOINING (they are being
            applied, up to `ApplyProgress.ahead_scn`; below that the low watermark says which), DONE, KEPT (its rows
            were kept, only the SCN was set), FAILED, or LEFT (it was copied, and then its changes did not come here for
            a while: its rows are out of date).
        row_count: rows copied (KEPT: not counted, 0).
        digest: of the rows, as the connector writes it; empty when not computed.
        problem: why it FAILED; empty otherwise.
        is_remade: what has this name at the destination now is another table than when this was recorded: it was
            dropped and created again, or exchanged. Recorded with it, the record stays of the earlier table; without,
            it is of this one.
        name_now: (owner, name) that the destination's table of when this was recorded has now; None: it is gone, or
            nobody knows.
        is_gone: that table is gone; False: it is there, or nobody knows.
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
        """Whether the destination's table of a name can be the one that was recorded.

        Also where nobody knows that (a dump was restored).

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
        """No row of it was copied, and an operator must act before one is."""
        return self.state == "FAILED" and not self.scn

    @property
    def is_kept(self) -> bool:
        """Its rows were kept as they were: they are an operator's own, and never removed unasked."""
        return self.state == "KEPT" or (self.state in {"COPIED", "JOINING"} and not self.digest)


AWAITING = "AWAITING"
"""State of an instantiation that waits for the copy of another apply process; see `spark_apply.copy.ways.shared_tables`."""

BEGUN = frozenset({"COPYING", "COMPARING"})
"""States of an instantiation whose copy runs, or was interrupted and will be made again."""

ROWS_THERE = BEGUN | {"COPIED", "JOINING", "DONE", "KEPT"}
"""States of an instantiation whose rows may be in the table; those of FAILED are if it has an SCN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherCopy:
    """What another apply process of the same database has recorded of a destination table, of whichever topology it is.

    Args:
        topology: whose apply process it is.
        apply: its name.
        source: the site that its rows are from.
        state: one of `ROWS_THERE`, or FAILED with an SCN: rows of its copy may be in the table. (FAILED without an SCN,
            and LEFT, are none.) Or AWAITING: no row is its own yet.
        scn: see `Instantiation`.
        row_count: see `Instantiation`.
        digest: see `Instantiation`.
        identity: see `Instantiation`.
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
        """Whether its rows are from the same table of the same source, captured by whichever topology.

        Args:
            identity: see `CapturedTable`.
        """
        table = identity.rpartition(".")[0]
        return bool(table) and self.identity.rpartition(".")[0] == table

    @property
    def is_copying(self) -> bool:
        """Whether its copy runs, or was interrupted and will be made again: the table may be emptied any moment."""
        return self.state in BEGUN

    @property
    def is_finished(self) -> bool:
        """Whether what it copied or kept is all there, and later changes are applied."""
        return not self.is_copying and self.state not in {"FAILED", AWAITING}

    @property
    def is_awaiting(self) -> bool:
        """Whether it has no rows in the table yet, and waits for another one's copy."""
        return self.state == AWAITING

    @property
    def is_of_nothing(self) -> bool:
        """Whether its source had no row of the table when it was recorded: later ones come as changes."""
        is_known = self.is_awaiting or (self.is_finished and self.state != "KEPT")
        return is_known and bool(self.digest) and self.row_count == 0

    @property
    def copied_nothing(self) -> bool:
        """Whether its copy was of no row, and is finished."""
        return self.is_finished and self.is_of_nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalSeen:
    """What a snapshot of a destination shows of a table that an apply process writes there.

    Args:
        record: of the table.
        progress: of the apply process, which is committed with the rows.
        has_errors: error transactions of it are there: their changes are not among the rows, and may be later.
    """

    record: Instantiation
    progress: ApplyProgress
    has_errors: bool

    @property
    def scn(self) -> Scn:
        """The rows have the changes up to here, and no others, if they are settled."""
        return max(self.progress.low_watermark, self.record.scn)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is applied beyond what is not: out of order, or while another table joins."""
        return not self.progress.above and self.progress.ahead_scn <= self.progress.low_watermark
