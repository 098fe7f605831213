"""`alerts:` of the file: of what an alert is sent, and to whom."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AlertTarget", "AlertsSpec"]

PER_HOUR_DEFAULT = 20  # of one target: what an operator reads, and what an account for messages bears


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTarget:
    """Where alerts go: a command, which gets one as JSON on its standard input, or a webhook, to which it is posted.

    Args:
        name: for `status`: the program, or the webhook's host.
        command: program and arguments.
        url: of the webhook; often a secret by itself.
        token: sent as `Authorization: Bearer`; empty: none.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSpec:
    """What alerts are sent of.

    Args:
        to: where each of them goes.
        error_transaction: a transaction entered an error queue.
        conflicts_count: so many conflicts at one apply process within `conflicts_seconds`; 0: none is sent.
        conflicts_seconds: see there.
        lag_s: a destination is further behind, or nobody knows for so long; 0: none is sent.
        component: a component or the controller is stopped, has given up, waits for an operator, does not answer, or
            does not get beyond its start.
        per_hour_max: of one target; what is beyond is counted in the next one.
        environment: names of the variables that the secrets came from.
    """

    to: tuple[AlertTarget, ...] = ()
    error_transaction: bool = True
    conflicts_count: int = 0
    conflicts_seconds: float = 0.0
    lag_s: float = 0.0
    component: bool = True
    per_hour_max: int = PER_HOUR_DEFAULT
    environment: tuple[str, ...] = ()
