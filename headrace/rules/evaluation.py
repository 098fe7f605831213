"""Rule evaluation: the verdict of one client's rules on a table, and their effect on a batch.

The three clients of rules - capture, propagation and apply - each hold one `RuleEvaluation`. Discarded rows leave the
batch, and transformed ones change; the chain of positions stays complete, so a receiver cannot distinguish a discarded
change from none.

Source: Oracle Streams Concepts and Administration 11.2, "Rule Set and Rule Evaluation".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import BugError
from headrace.lcr.batch import LcrBatch, TableVersion, changed_table
from headrace.lcr.cutting import select_rows, without_unused
from headrace.lcr.ddl import DdlChange
from headrace.rules.clients_before import ClientsBefore
from headrace.rules.conditions.values import ValueTypes
from headrace.rules.row_evaluation import RowEvaluation
from headrace.rules.rule import UNKNOWN_TAG, KnownTag, Rule, RuleSet, TruthValue, tags_told_apart
from headrace.rules.transformations.reshaping import Reshaping
from headrace.rules.user_code.last_call import LastCall

__all__ = ["RuleEvaluation"]

_NAMES_MAX = 4096  # of tables times tags; above that it is only slower


class RuleEvaluation:
    """Evaluates the rules of one client.

    Args:
        rules: the client's rules. Several: an LCR must pass each of them, as if it passed that many clients; the last
            one is the client's own.
        types: types of the changes' database: needed for rules with conditions, and for functions that read values.
        clock: clock for transformations that add the time.
        last_call: outlives functions that end the process; None: no protection.
    """

    def __init__(
        self,
        *rules: RuleSet | ClientsBefore,
        types: ValueTypes | None = None,
        clock: Clock | None = None,
        last_call: LastCall | None = None,
    ) -> None:
        sets = tuple(each for each in rules if isinstance(each, RuleSet))
        self._rules = tuple(each for each in sets if each.include is not None or each.exclude)
        self._before = tuple(each for each in rules if isinstance(each, ClientsBefore))
        if any(each.transforms for each in sets[:-1]):
            raise BugError("only the last client can transform: the clients after it would evaluate transformed LCRs")
        self._reshaping = (
            Reshaping(sets[-1].transformation_of, (clock or SystemClock()).time_us, types, last_call)
            if sets and sets[-1].transforms
            else None
        )
        self._passed: dict[tuple[str, str, KnownTag], bool] = {}  # cached verdicts of `_before`
        self._tags = tags_told_apart((*self._rules, *(rules for each in self._before for rules in each.clients)))
        conditional = tuple(each for each in self._rules if each.looks_at_rows)
        if conditional and types is None:
            raise BugError("rules with conditions need the types of the database that the changes are from")
        self._by_rows = tuple(RowEvaluation(each, types) for each in conditional if types is not None)

    @property
    def keeps_all(self) -> bool:
        """Whether there are no rules: everything passes unread."""
        return not self._rules and not self._before

    def answer(self, table: TableVersion, *, tag: KnownTag = UNKNOWN_TAG) -> TruthValue:
        """Return the rules' verdict on row LCRs of a table version; needs no rows.

        Args:
            table: the version.
            tag: the LCRs' tag; not known: the answer may be MAYBE.
        """
        if self._before and not self._has_passed(table, tag):
            return TruthValue.FALSE
        answers = {rules.prefilter(table.owner, table.name, tag=tag) for rules in self._rules}
        return next((answer for answer in (TruthValue.FALSE, TruthValue.MAYBE) if answer in answers), TruthValue.TRUE)

    def _has_passed(self, table: TableVersion, tag: KnownTag) -> bool:
        """Return whether the clients before this one may have let row LCRs of a table version pass."""
        if tag is not UNKNOWN_TAG and tag not in self._tags:
            tag = self._tags[-1]  # no rule lists it, and users may give each transaction its own
        key = table.owner, table.name, tag
        if key not in self._passed:
            if len(self._passed) >= _NAMES_MAX:
                self._passed.clear()
            self._passed[key] = all(each.keeps(table.owner, table.name, tag=tag) for each in self._before)
        return self._passed[key]

    def keeps(self, table: TableVersion, tags: Sequence[bytes | None]) -> list[bool]:
        """Return whether row LCRs of a table version may pass, for each of `tags`.

        Args:
            table: the version, under the name that its LCRs have here.
            tags: any; None: the NULL tag.

        Returns:
            One answer per tag; False: none passes. True: they pass, or rows decide.
        """
        return [self.answer(table, tag=tag) is not TruthValue.FALSE for tag in tags]

    def keeps_any(self, table: TableVersion) -> bool:
        """Return whether row LCRs of a table version may pass with some tag."""
        return any(self.keeps(table, self._tags))

    def keeps_ddl(self, owner: str, name: str, *, tag: bytes | None) -> bool:
        """Return whether DDL LCRs of a table pass.

        Args:
            owner: the table's schema, as for `RuleSet.keeps_ddl`.
            name: the table's name.
            tag: the LCRs' tag.
        """
        clients: tuple[RuleSet | ClientsBefore, ...] = (*self._before, *self._rules)
        return all(each.keeps_ddl(owner, name, tag=tag) for each in clients)

    def within(self, change: DdlChange, *, tag: bytes | None) -> DdlChange:
        """Return a DDL change that passes; one that takes its table out of the rules is only recorded.

        Args:
            change: as `keeps_ddl` lets it pass under the name that the table had before.
            tag: of the LCR.
        """
        name = change.name_after
        if name is None or name == change.base_table or self.keeps_ddl(*name, tag=tag):
            return change
        if self.answer(changed_table(change, name), tag=tag) is not TruthValue.FALSE:
            return change.not_made(f"the rules do not take the DDL of {name}, its new name")
        return change.not_made(f"the rules do not take {name}, its new name: the table leaves them", leaves=True)

    def reshaped(self, table: TableVersion) -> TableVersion:
        """Return a table version in its form behind the client; needs no rows.

        Args:
            table: before the client.

        Raises:
            TransformationError: a transformation cannot be applied to the table.
        """
        return table if self._reshaping is None else self._reshaping.version(table)

    @property
    def transforms(self) -> bool:
        """Whether a rule of the client has a transformation."""
        return self._reshaping is not None

    def must_know(self, table: TableVersion) -> None:
        """Refuse a table version in which a column that a transformation names may have another name.

        Args:
            table: before the client.

        Raises:
            TransformationError: its rows could not be transformed.
        """
        if self._reshaping is not None and self.keeps_any(table):
            self._reshaping.must_know(table)

    def named(self, table: TableVersion) -> TableVersion:
        """Return a table version under its name behind the client; its columns stay."""
        return table if self._reshaping is None else self._reshaping.named(table)

    def unmatched(self, tables: Iterable[tuple[str, str]]) -> tuple[Rule, ...]:
        """Return the positive rules that match none of `tables` (owner, name): probably a misspelt name."""
        known = tuple(tables)
        return tuple(rule for rules in self._rules for rule in rules.unmatched(known))

    def is_undecided(self, batch: LcrBatch) -> bool:
        """Return whether `filter` does more than prefiltering.

        That is the case if the verdict on some table in the batch is MAYBE, or a table is transformed.
        """
        if self._reshaping is not None and any(self._reshaping.changes(table) for table in batch.tables):
            return True
        tags = _tags(batch)
        used = [tags[place] for place in np.unique(batch.transactions.tag)]
        return any(self.answer(table, tag=tag) is TruthValue.MAYBE for table in batch.tables for tag in used)

    def filter(self, batch: LcrBatch) -> LcrBatch:
        """Evaluate the rules against every LCR of a batch.

        Args:
            batch: any batch.

        Returns:
            A batch with the kept LCRs, transformed, and the same positions; the same object when nothing changes. If
            none is kept: a progress mark, or, in a transaction in parts, a part without rows.

        Raises:
            ConditionError: a condition cannot be evaluated.
            TransformationError: a transformation cannot be applied to a table.
        """
        if batch.is_progress_mark or self.keeps_all:
            return batch
        if batch.ddl is not None:
            tag = _tags(batch)[int(batch.transactions.tag[0])]
            if self.keeps_ddl(*batch.ddl.base_table, tag=tag):
                change = self.within(batch.ddl, tag=tag)
                return batch if change is batch.ddl else replace(batch, ddl=change)
            return without_unused(select_rows(batch, np.zeros(1, np.bool_)))
        kept = self._by_names(batch)
        before = kept
        for each in self._by_rows:
            if kept.row_count:
                kept = each.filter(kept)
        kept = kept if kept is before else without_unused(kept)
        return kept if self._reshaping is None else self._reshaping.batch(kept)

    def _by_names(self, batch: LcrBatch) -> LcrBatch:
        """Return the batch without the rows that name and tag discard."""
        tags = _tags(batch)
        found = [self.keeps(table, tags) for table in batch.tables]
        if all(all(each) for each in found):
            return batch
        verdicts = np.array(found, np.bool_).reshape(-1, len(tags))
        if verdicts[:, np.unique(batch.transactions.tag)].all():
            return batch
        tag = np.repeat(batch.transactions.tag, np.diff(batch.transactions.first_row))
        keep = np.zeros(batch.row_count, np.bool_)
        for group in batch.groups:
            keep[group.row_numbers] = verdicts[group.table, tag[group.row_numbers]]
        kept = self._truncates(batch, verdicts, tag, keep)
        if keep.all() and kept.truncates == batch.truncates:
            return batch
        return without_unused(select_rows(kept, keep))

    @staticmethod
    def _truncates(
        batch: LcrBatch, verdicts: NDArray[np.bool_], tag: NDArray[np.int16], keep: NDArray[np.bool_]
    ) -> LcrBatch:
        """Return the batch with TRUNCATEs of the tables that pass; `keep` is set for TRUNCATEs with one."""
        truncates = []
        for truncate in batch.truncates:
            tables = tuple(table for table in truncate.tables if verdicts[table, tag[truncate.row_number]])
            keep[truncate.row_number] = bool(tables)
            truncates.append(replace(truncate, tables=tables))
        return replace(batch, truncates=tuple(truncates))


def _tags(batch: LcrBatch) -> tuple[bytes | None, ...]:
    """Return the tags of a batch by their places; the last one is NULL, whose place is -1."""
    return (*(tag.value for tag in batch.tags), None)
