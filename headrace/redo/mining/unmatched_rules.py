"""Rules of a capture process that match no table: probably a misspelt name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.base.clock import Clock
    from headrace.lcr.scn import Scn
    from headrace.redo.dictionary import Dictionary
    from headrace.redo.mining.names import TableNames
    from headrace.rules.evaluation import RuleEvaluation
    from headrace.rules.rule import Rule

__all__ = ["UnmatchedRules"]

ASK_SOURCE_INTERVAL_S = 10.0  # of the names of its tables, where a rule matches none in the log; it may be away


class UnmatchedRules:
    """Positive rules that match no table that the log or its source knows. One per miner.

    Args:
        rules: of the capture process.
        names: what the source's site knows of the names of its tables.
        clock: for how often the source is asked.
    """

    def __init__(self, rules: RuleEvaluation, names: TableNames, clock: Clock) -> None:
        self._rules, self._names, self._clock = rules, names, clock
        self._in_log: tuple[tuple[int, Scn], tuple[Rule, ...]] | None = None  # and of which tables that is the answer
        self._at_source: set[tuple[str, str]] = set()
        self._ask_source_at = 0.0

    def find(self, dictionary: Dictionary, table_count: int) -> tuple[Rule, ...]:
        """The rules.

        Args:
            dictionary: of the redo that was read.
            table_count: how many table versions were met: as long as that and the build stay, nothing is new.
        """
        known = (table_count, dictionary.build.scn)
        if self._in_log is None or self._in_log[0] != known:
            self._in_log = (known, self._rules.unmatched(dictionary.names()))
        unmatched = self._in_log[1]
        if not unmatched:
            return ()
        # The log speaks of a table with its first change.
        if self._clock.monotonic() >= self._ask_source_at:
            self._ask_source_at = self._clock.monotonic() + ASK_SOURCE_INTERVAL_S
            self._names.look_again()  # an answer from before the table is kept until the log describes another one
            self._at_source = self._names.at_source()
        return tuple(rule for rule in unmatched if not any(rule.matches_object(*name) for name in self._at_source))
