"""Who gets what, by brute force: single changes walk through the components of a topology, one hop at a time.

The real rule evaluation decides what each client takes and what it calls tables, on a batch with one row of every table
and tag. Nothing here depends on the prover, or on how it combines changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product

import numpy as np

from headrace.databases.connectors import value_types
from headrace.lcr.batch import Command, LcrBatch, RowGroup
from headrace.lcr.tags import Tag
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from tests.support.values.lcr_batches import column_values, table_version, transactions
from topology.spec import TopologySpec

__all__ = ["CYCLE", "ONCE", "TWICE", "SingleChanges", "Table"]

Table = tuple[str, str]
Change = tuple[str, Table, bytes | None]
"""The site whose redo has it, its table and its tag."""

ONCE, TWICE, CYCLE = "once", "twice", "in a cycle"
HOPS_MAX = 40  # a change applied this often in a row visited a site twice: there are fewer sites


class SingleChanges:
    """Sends single changes through one topology.

    Args:
        spec: routed.
        tables: tables of the changes, and every name that they get.
        tags: tags by users; those of apply processes are added.
    """

    def __init__(self, spec: TopologySpec, tables: Sequence[Table], tags: Sequence[bytes | None]) -> None:
        self.spec = spec
        self.tables = tuple(tables)
        self.tags = tuple(dict.fromkeys((None, *tags, *(apply.tag for apply in spec.applies))))
        # by the identity of the rules: hashing them costs more
        self._kept: dict[int, dict[tuple[Table, bytes | None], Table]] = {}
        self._sent: dict[Change, list[Change]] = {}

    def reached(self, change: Change) -> dict[str, str]:
        """Return the sites that get a change, and how often: ONCE, TWICE (or more) or in a CYCLE."""
        if not self.sent(change):
            return {}
        times: Counter[tuple[str, Table]] = Counter()
        circling: set[Change] = set()
        pending: list[tuple[Change, ...]] = [(change,)]
        while pending:
            history = pending.pop()
            for following in self.sent(history[-1]):
                times[following[:2]] += 1
                if following in history[1:] or len(history) > HOPS_MAX:
                    circling.add(following)
                else:
                    pending.append((*history, following))
        found: dict[str, str] = {}
        for (site, _), count in times.items():
            found[site] = TWICE if count > 1 else found.get(site, ONCE)
        return found | dict.fromkeys(self._everywhere_behind(circling), CYCLE)

    def _everywhere_behind(self, changes: set[Change]) -> set[str]:
        """Return the sites that get what follows from some changes."""
        known: set[Change] = set()
        pending = list(changes)
        while pending:
            change = pending.pop()
            for following in self.sent(change):
                if following not in known:
                    known.add(following)
                    pending.append(following)
        return {site for site, _, _ in known}

    def sent(self, change: Change) -> list[Change]:
        """Return the changes that apply processes make of one change, one per application."""
        if change not in self._sent:
            self._sent[change] = list(self._walk(change))
        return self._sent[change]

    def _walk(self, change: Change) -> Iterator[Change]:
        source, _, tag = change
        begun = [
            (each.queue, self._behind(each.rules, change[1:])) for each in self.spec.captures if each.source == source
        ]
        queues = [(queue, table) for queue, table in begun if table is not None]
        for steps, (queue, here) in enumerate(queues):  # the loop appends to `queues`
            assert steps < 1000, "a change goes round among queues: two publishers of one source feed one of them"
            for apply in self.spec.applies:
                if (apply.queue, apply.source) == (queue, source) and (
                    table := self._behind(apply.rules, (here, tag))
                ) is not None:
                    yield apply.site, table, apply.tag
            onward = [each for each in self.spec.propagations if each.from_queue == queue and source in each.sources]
            queues += [
                (each.to_queue, table)
                for each in onward
                if (table := self._behind(each.rules, (here, tag))) is not None
            ]

    def _behind(self, rules: RuleSet, change: tuple[Table, bytes | None]) -> Table | None:
        """Return the name of a change's table behind a client; None: the client discards it."""
        if id(rules) not in self._kept:
            self._kept[id(rules)] = _kept(rules, self.tables, self.tags)
        return self._kept[id(rules)].get(change)


@lru_cache(maxsize=10_000)
def _kept(
    rules: RuleSet, tables: tuple[Table, ...], tags: tuple[bytes | None, ...]
) -> dict[tuple[Table, bytes | None], Table]:
    """Return what the rules leave of a batch with one row per table and tag, with the tables' names afterwards."""
    left = RuleEvaluation(rules, types=value_types()).filter(_batch(tables, tags))
    # each transaction has one row; its number is the commit SCN
    owner = np.repeat(left.transactions.commit_scn, np.diff(left.transactions.first_row))
    names = {int(number): left.tables[group.table] for group in left.groups for number in owner[group.row_numbers]}
    return {
        each: (names[number].owner, names[number].name)
        for number, each in enumerate(product(tables, tags), 1)
        if number in names
    }


@lru_cache(maxsize=100)
def _batch(tables: tuple[Table, ...], tags: tuple[bytes | None, ...]) -> LcrBatch:
    """Return one row for every table and tag, each in a transaction whose commit SCN is its number."""
    count, each = len(tables) * len(tags), len(tags)
    assert tags[0] is None  # its position is -1
    return LcrBatch(
        source="s",
        previous_scn=0,
        through_scn=count,
        tables=tuple(table_version(name, owner=owner) for owner, name in tables),
        tags=tuple(Tag(value=tag) for tag in tags if tag is not None),
        transactions=transactions(
            list(range(1, count + 1)), [1] * count, tags=[number - 1 for _ in tables for number in range(each)]
        ),
        groups=tuple(
            RowGroup(
                table=number,
                command=Command.INSERT,
                row_numbers=np.arange(number * each, (number + 1) * each, dtype=np.int32),
                old=None,
                new=column_values([[b"\0\0\0\1"] * each] * 2),
            )
            for number in range(len(tables))
        ),
    )
