"""The common part of every component's status."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ComponentStatus", "Failure", "WireStatus"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An error that became a component's state.

    Args:
        error: class of the error.
        code: HDR-nnnn.
        message: what happened.
        hint: what to do; empty: unknown.
        retry: timed, manual or never, as in `headrace.base.errors.Retry`.
        at_us: time of the error, microseconds since the epoch.
    """

    error: str = ""
    code: str = ""
    message: str = ""
    hint: str = ""
    retry: str = ""
    at_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WireStatus:
    """Callers that a serving component refused or throttled, since its process began.

    Args:
        tls: connections are encrypted, and callers present certificates.
        refused_calls: refused calls.
        refused_connections: failed connections; lags by the possible duration of a handshake.
        last_refused_connection_us: time when the status first showed the last of them; None: its process reports no
            time, and now is assumed.
        last_refusal: reason of the last refused call.
        last_refusal_us: time of the last refused call.
        revoked_problem: why the list of revoked certificates cannot be read; empty: it can.
        held_back: waits imposed on streams or calls of callers that send too much.
        last_held_back: last throttled caller, and why.
        last_held_back_us: time of that.
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
        name: name of the component, such as "queue:q_dbs1".
        kind: the part before the colon.
        site: site where it runs.
        state: state in the manuals' words; UNREACHABLE, NOT CREATED or BYPASSED if it does not answer.
        enabled: whether an operator wants it to run; None: unknown.
        since_us: start of this state, microseconds since the epoch.
        started_us: start of its process, microseconds since the epoch.
        alive_us: last activity of its thread, microseconds since the epoch.
        errors_total: errors that became its state.
        opens_total: number of times it was opened.
        last_error: the last of these errors.
        fingerprint: hash of its part of the topology; None: unknown.
        problem: what is wrong; empty: nothing.
        fix: what to do about the problem.
        detail: what it waits for, or what its state means; empty: the state says it.
        hint: what to do about the detail.
        wire: callers that it refused; None: it serves no callers now.
        rows_total: rows that passed; None: it does not count them.
        bytes_total: bytes that passed; None: it does not count them.
        transactions_total: transactions of the source that passed; None: it does not count them.
        rows_per_s: recent rows per second; None: not yet known.
        bytes_per_s: recent bytes per second; None: not yet known.
        transactions_per_s: recent transactions per second; None: not yet known.
        outdated: it is about to change or to be replaced.
        functions: user functions that it runs, name -> version; None: none.
        bypassed_by: component that does its work; None: it does it itself.
        to_be_bypassed_by: component that will do its work.
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
