"""Renewal of the certificates of a topology that outlives them."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from topology.links import makes_certificates

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from topology.spec import TopologySpec

__all__ = ["RENEWAL_INTERVAL_S", "Renewal"]

log = logging.getLogger("headrace")

# A check reads a few small files; a machine that was suspended past the end of its certificates must not wait long.
RENEWAL_INTERVAL_S = 3_600.0


class Renewal:
    """Checks once an hour whether a certificate that `up` made for the file's topology is due for renewal.

    Args:
        clock: spaces the checks, and dates the certificates.
    """

    def __init__(self, spec: TopologySpec, clock: Clock) -> None:
        self._spec, self._clock = spec, clock
        # at once: a controller that died during a renewal left a certificate without its key
        self._next_at = clock.monotonic()

    def look(self) -> None:
        """Renew due certificates, if the last check was an hour ago; a failed renewal is retried after an hour."""
        if self._clock.monotonic() < self._next_at or not makes_certificates(self._spec):
            return
        self._next_at = self._clock.monotonic() + RENEWAL_INTERVAL_S
        from actors.security.upkeep import keep_certificates  # cryptography: commands start without it

        try:
            made = keep_certificates(self._spec, now=datetime.fromtimestamp(self._clock.time_us() / 1e6, UTC))
        except ConfigError as error:
            # `check` warns a month before their end
            log.warning("%s: certificates are not renewed now: %s", self._spec.name, error.message)
        else:
            log.info("%s: certificates renewed: %s", self._spec.name, ", ".join(made) or "none is due")
