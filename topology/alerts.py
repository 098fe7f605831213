"""`alerts:` of the file: what triggers an alert, and where alerts go."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["AlertTarget", "AlertsSpec"]

PER_HOUR_DEFAULT = 20  # per target: what an operator still reads, and what a messaging account allows


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertTarget:
    """One destination of alerts: a command or a webhook.

    The command gets an alert as JSON on its standard input; the webhook gets it as a POST.

    Args:
        name: name in `status`: the program, or the webhook's host.
        command: program and arguments.
        url: of the webhook; often a secret by itself.
        token: sent as `Authorization: Bearer`; empty: no such header.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = field(default="", repr=False)
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsSpec:
    """What triggers alerts, and where they go.

    Args:
        to: the destinations; each gets every alert.
        error_transaction: alert when a transaction enters an error queue.
        conflicts_count: alert at this many conflicts at one apply process within `conflicts_seconds`; 0: no such alert.
        conflicts_seconds: the period for `conflicts_count`, seconds.
        lag_s: alert when a destination is further behind than this, or when its lag is unknown for this long; 0: no
            such alert.
        component: alert when a component or the controller is stopped, has given up, waits for an operator, does not
            answer, or does not finish starting.
        per_hour_max: bound of alerts per target and hour; the next alert counts those beyond it.
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
