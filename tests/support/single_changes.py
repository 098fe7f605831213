"""Who gets what, by brute force: single changes walk through the components of a topology, one hop at a time.

What each client's rules say comes from the real rule evaluation, on a batch with one row of every table and tag. Nothing here
knows the prover, nor how it puts changes together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from rules.evaluation import RuleEvaluation
from rules.rule import RuleSet
from streams.lcr_batch import Command, LcrBatch, RowGroup
from streams.tags import Tag
from tests.support.lcr_batches import column_values, table_version, transactions
from topology.spec import TopologySpec

__all__ = ["CYCLE", "ONCE", "TWICE", "SingleChanges", "Table"]

Table = tuple[str, str]
Change = tuple[str, Table, bytes | None]
"""A site whose redo it is in, its table and its tag."""

ONCE, TWICE, CYCLE = "once", "twice", "in a cycle"
HOPS_MAX = 40  # a change that was applied so often in a row was somewhere twice: there are fewer sites


class SingleChanges:
    """Sends single changes through one topology.

    Args:
        spec: routed.
        tables: that changes are made of.
        tags: that users give them; those of apply processes are added.
    """

    def __init__(self, spec: TopologySpec, tables: Sequence[Table], tags: Sequence[bytes | None]) -> None:
        self.spec = spec
        self.tables = tuple(tables)
        self.tags = tuple(dict.fromkeys((None, *tags, *(apply.tag for apply in spec.applies))))
        self._kept: dict[int, frozenset[tuple[Table, bytes | None]]] = {}  # by the identity of the rules: their hash costs more
        self._sent: dict[Change, list[Change]] = {}

    def reached(self, change: Change) -> dict[str, str]:
        """The sites that get a change, and how often: ONCE, TWICE (or more) or in a CYCLE."""
        if not self.sent(change):
            return {}
        times: Counter[str] = Counter()
        circling: set[Change] = set()
        pending: list[tuple[Change, ...]] = [(change,)]
        while pending:
            history = pending.pop()
            for following in self.sent(history[-1]):
                times[following[0]] += 1
                if following in history[1:] or len(history) > HOPS_MAX:
                    circling.add(following)
                else:
                    pending.append((*history, following))
        found = {site: ONCE if count == 1 else TWICE for site, count in times.items()}
        return found | dict.fromkeys(self._everywhere_behind(circling), CYCLE)

    def _everywhere_behind(self, changes: set[Change]) -> set[str]:
        """The sites that get what follows from some changes."""
        known: set[Change] = set()
        pending = list(changes)
        while pending:
            for following in self.sent(pending.pop()):
                if following not in known:
                    known.add(following)
                    pending.append(following)
        return {site for site, _, _ in known}

    def sent(self, change: Change) -> list[Change]:
        """The changes that apply processes make of one change, one each time they apply it."""
        if change not in self._sent:
            self._sent[change] = list(self._walk(change))
        return self._sent[change]

    def _walk(self, change: Change) -> Iterator[Change]:
        source, table, _ = change
        queues = [each.queue for each in self.spec.captures if each.source == source and self._keeps(each.rules, change)]
        for steps, queue in enumerate(queues):  # it grows at its end
            assert steps < 1000, "a change goes round among queues: two publishers of one source feed one of them"
            for apply in self.spec.applies:
                if (apply.queue, apply.source) == (queue, source) and self._keeps(apply.rules, change):
                    yield apply.site, table, apply.tag
            queues += [
                each.to_queue for each in self.spec.propagations
                if each.from_queue == queue and source in each.sources and self._keeps(each.rules, change)
            ]

    def _keeps(self, rules: RuleSet, change: Change) -> bool:
        if id(rules) not in self._kept:
            self._kept[id(rules)] = _kept(rules, self.tables, self.tags)
        return change[1:] in self._kept[id(rules)]


@lru_cache(maxsize=10_000)
def _kept(rules: RuleSet, tables: tuple[Table, ...], tags: tuple[bytes | None, ...]) -> frozenset[tuple[Table, bytes | None]]:
    """What the rule evaluation leaves of a batch that has one row for every table and tag."""
    left = RuleEvaluation(rules).filter(_batch(tables, tags))
    # One row per transaction: whose row is left was kept.
    with_row = np.diff(left.transactions.first_row) > 0
    numbers = {int(number) for number in left.transactions.commit_scn[with_row]}
    return frozenset(each for number, each in enumerate(product(tables, tags), 1) if number in numbers)


@lru_cache(maxsize=100)
def _batch(tables: tuple[Table, ...], tags: tuple[bytes | None, ...]) -> LcrBatch:
    """One transaction with one row for every table and tag; its commit SCN is its number."""
    count, each = len(tables) * len(tags), len(tags)
    assert tags[0] is None  # whose place is -1
    return LcrBatch(
        source="s", previous_scn=0, through_scn=count,
        tables=tuple(table_version(name, owner=owner) for owner, name in tables), tags=tuple(Tag(value=tag) for tag in tags if tag is not None),
        transactions=transactions(list(range(1, count + 1)), [1] * count, tags=[number - 1 for _ in tables for number in range(each)]),
        groups=tuple(
            RowGroup(
                table=number, command=Command.INSERT, row_numbers=np.arange(number * each, (number + 1) * each, dtype=np.int32), old=None,
                new=column_values([[b"\0\0\0\1"] * each] * 2),
            )
            for number in range(len(tables))
        ),
    )
