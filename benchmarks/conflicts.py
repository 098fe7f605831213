"""Cost of conflict handlers: one apply server applies updates to a private PostgreSQL, in groups of 10,000 rows.

    python -m benchmarks.conflicts [--rows 100000] [--runs 3]

Six ways to apply the same changes alternate:

- without handlers
- with `maximum` over all columns, while nothing conflicts
- with `maximum`, where one row of a hundred was changed at the destination
- both of these with `latest_timestamp` and tombstones between two sites
- `latest_timestamp` at one of three sites, where nothing conflicts and every row is noted

A transaction has ten rows of six columns, old and new values.
"""

from __future__ import annotations

import numpy as np

from benchmarks.apply_server import APPLY, Way, compare, options, running_server
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, TIMED_KINDS, ConflictHandler, ConflictRules, RowTimes
from spark_apply.sets.conflict_settings import ConflictSettings

SHARE = 100  # one row in this many conflicts
MAXIMUM = ConflictRules(handlers=(ConflictHandler(owner="public", name="t", method="maximum", resolution_column="at"),))


def _latest(*sites: str) -> ConflictRules:
    """Return latest_timestamp rules for changes from site a at site b."""
    return ConflictRules(
        handlers=tuple(
            ConflictHandler(owner="public", name="t", method="latest_timestamp", kind=kind, priority=sites)
            for kind in TIMED_KINDS
        ),
        times=RowTimes(site="b", sites=sites, has_tombstones=True),
    )


LATEST, LATEST_OF_THREE = _latest("b", "a"), _latest("b", "a", "c")


class _Way(Way):
    """Updates in random order, of which some conflict."""

    def __init__(self, server: EmbeddedServer, name: str, rules: ConflictRules, rows: int, *, conflicts: bool) -> None:
        super().__init__(server, name, rows, conflicts=ConflictSettings(apply=APPLY, source="a", site="b", rules=rules))
        self.conflicts = conflicts

    def before(self) -> None:
        if self.conflicts:
            # Between the present version and the next: the LCR wins, and leaves the row as the next run expects it.
            self.user.execute("UPDATE t SET at = at + 5 WHERE id %% %s = 0", (SHARE,))

    def order(self) -> np.ndarray:
        return np.random.default_rng(self.version).permutation(self.rows).astype(np.int64)


def main() -> None:
    """Run and print."""
    given = options(__doc__, rows=100_000)
    with running_server(track_commit_timestamp="on") as server:
        compare(
            {
                "without handlers": _Way(server, "plain", NO_CONFLICT_RULES, given.rows, conflicts=False),
                "handlers, no conflict": _Way(server, "handlers", MAXIMUM, given.rows, conflicts=False),
                f"handlers, 1 row of {SHARE} conflicts": _Way(server, "conflicts", MAXIMUM, given.rows, conflicts=True),
                "latest_timestamp, no conflict": _Way(server, "latest", LATEST, given.rows, conflicts=False),
                f"latest_timestamp, 1 row of {SHARE}": _Way(
                    server, "latest_conflicts", LATEST, given.rows, conflicts=True
                ),
                "the same at one of three sites, no conflict": _Way(
                    server, "latest_of_three", LATEST_OF_THREE, given.rows, conflicts=False
                ),
            },
            plain="without handlers",
            runs=given.runs,
        )


if __name__ == "__main__":
    main()
