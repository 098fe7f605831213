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

ASK_SOURCE_INTERVAL_S = 10.0  # for table names, where a rule matches none in the log; the source may be away


class UnmatchedRules:
    """Positive rules that match no table in the log or at its source. One per miner.

    Args:
        rules: the capture process's rules.
        names: the source's knowledge of its table names.
        clock: clock for the interval of asking the source.
    """

    def __init__(self, rules: RuleEvaluation, names: TableNames, clock: Clock) -> None:
        self._rules, self._names, self._clock = rules, names, clock
        self._in_log: tuple[tuple[int, Scn], tuple[Rule, ...]] | None = None  # with the dictionary's state
        self._at_source: set[tuple[str, str]] = set()
        self._ask_source_at = 0.0

    def find(self, dictionary: Dictionary, table_count: int) -> tuple[Rule, ...]:
        """Return the unmatched rules.

        Args:
            dictionary: dictionary of the redo read so far.
            table_count: number of table versions met: while it and the build stay the same, so does the answer.
        """
        known = (table_count, dictionary.build.scn)
        if self._in_log is None or self._in_log[0] != known:
            self._in_log = (known, self._rules.unmatched(dictionary.names()))
        unmatched = self._in_log[1]
        if not unmatched:
            return ()
        # A table appears in the log with its first change only.
        if self._clock.monotonic() >= self._ask_source_at:
            self._ask_source_at = self._clock.monotonic() + ASK_SOURCE_INTERVAL_S
            self._names.look_again()  # else an older answer is cached until the log describes a table
            self._at_source = self._names.at_source()
        return tuple(rule for rule in unmatched if not any(rule.matches_object(*name) for name in self._at_source))
