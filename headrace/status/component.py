"""What every component says of itself."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ComponentStatus", "Failure", "WireStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error that became a component's state.

    Args:
        error: the class of the error.
        code: HDR-nnnn.
        message: what happened.
        hint: what to do; empty: nothing is known.
        retry: timed, manual or never; see `headrace.base.errors.Retry`.
        at_us: when, microseconds since the epoch.
    """

    error: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""
    retry: str = ""
    at_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WireStatus:
    """Whom a component that serves refused or held back, since its process began.

    Args:
        tls: connections are encrypted, and callers show certificates.
        refused_calls: how many calls were refused.
        refused_connections: how many connections failed; lags by the time that a handshake may take.
        last_refused_connection_us: when the status showed the last of them first; None: its process says no time, and it is now.
        last_refusal: why the last call was refused.
        last_refusal_us: when.
        revoked_problem: why the list of revoked certificates cannot be read; empty: it can.
        held_back: how often a stream or call of a caller that sends too much had to wait.
        last_held_back: who did last, and why.
        last_held_back_us: when.
        problem: what is wrong with the component's own certificate; empty: nothing is known.
    """

    tls: bool = False
    refused_calls: int = 0
    refused_connections: int = 0
    last_refused_connection_us: int | None = None
    last_refusal: str = ""
    last_refusal_us: int = 0
    revoked_problem: str = ""
    held_back: int = 0
    last_held_back: str = ""
    last_held_back_us: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentStatus:
    """What is known of a component of any kind, whether it answers or not.

    Args:
        name: of the component, such as "queue:q_dbs1".
        kind: what is before the colon.
        site: where it runs.
        state: in the manuals' words; of one that does not answer: UNREACHABLE, NOT CREATED or BYPASSED.
        enabled: an operator wants it to run; None: unknown.
        since_us: since when it is in this state, microseconds since the epoch.
        started_us: when its process began, microseconds since the epoch.
        alive_us: when its thread did something last, microseconds since the epoch.
        errors_total: errors that became its state.
        opens_total: how often it was opened.
        last_error: the last of the errors.
        fingerprint: the label of its part of the topology; None: unknown.
        problem: what is wrong; empty: nothing.
        fix: what to do about that.
        detail: what it waits for, or what its state means; empty: the state says it.
        hint: what to do about that.
        wire: whom it refused; None: it serves nobody now.
        rows_total: rows that passed; None: it does not count them.
        bytes_total: bytes that passed, likewise.
        transactions_total: transactions of the source that passed, likewise.
        rows_per_s: rows a second, lately; None: not yet known.
        bytes_per_s: bytes a second, likewise.
        transactions_per_s: transactions a second, likewise.
        outdated: it is about to change or to be replaced.
        functions: the user functions that it runs, name -> version; None: it runs none.
        bypassed_by: the component that does its work; None: it does it itself.
        to_be_bypassed_by: the one that will.
    """

    name: str
    kind: str = ""
    site: str = ""
    state: str = ""
    enabled: bool | None = None
    since_us: int | None = None
    started_us: int | None = None
    alive_us: int | None = None
    errors_total: int | None = None
    opens_total: int | None = None
    last_error: Failure | None = None
    fingerprint: str | None = None
    problem: str = ""
    fix: str = ""
    detail: str = ""
    hint: str = ""
    wire: WireStatus | None = None
    rows_total: int | None = None
    bytes_total: int | None = None
    transactions_total: int | None = None
    rows_per_s: float | None = None
    bytes_per_s: float | None = None
    transactions_per_s: float | None = None
    outdated: bool = False
    functions: dict[str, str] | None = None
    bypassed_by: str | None = None
    to_be_bypassed_by: str | None = None
