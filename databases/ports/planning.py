"""What a database says beforehand: what is missing, and what would be done to it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding", "PlannedApply", "PlannedStatement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing a preflight found.

    Args:
        path: what it is about ("sites.dbs1", "sites.dbs1 table public.t").
        problem: what is wrong.
        fix: the statement or setting that mends it.
        is_error: replication cannot start; False: a warning the operator should know.
    """

    path: str
    problem: str
    fix: str
    is_error: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStatement:
    """One thing that `prepare`, instantiation or apply would do to a database, for `headrace plan`.

    Args:
        statement: as it would be sent (shortened where it repeats), without secrets.
        effect: what it creates or changes, in one sentence.
        lock: what it locks, how, and how long; empty: nothing that a user's statement could wait for.
        breaks: user statements that would start to fail, and why; empty: none.
        is_done: the database has it already: `up` changes nothing.
    """

    statement: str
    effect: str
    lock: str = ""
    breaks: tuple[str, ...] = ()
    is_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedApply:
    """An apply process, as far as its destination notices it.

    Args:
        name: of the apply process.
        source: whose changes it applies.
        parallelism: apply servers, a session each.
        tag: what marks its changes.
    """

    name: str
    source: str
    parallelism: int
    tag: bytes
