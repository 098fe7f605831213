"""Rule sets with conditions: their verdict on every row of a batch, and the result of row migration.

The second half of rule evaluation, for tables that name and tag do not decide. Each rule set is evaluated separately,
like successive clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from headrace.lcr.batch import Command, LcrBatch, TableVersion, Truncate
from headrace.lcr.cutting import row_transactions, select_rows
from headrace.lcr.values import ColumnValues
from headrace.rules.conditions.compiled import CompiledCondition, Rows
from headrace.rules.conditions.condition import LOG_WHOLE_ROWS, Condition
from headrace.rules.conditions.logic import FALSE, TRUE, Outcome, both, decided, either, negated, settled
from headrace.rules.conditions.nodes import ConditionError, Image, of_image
from headrace.rules.conditions.values import ValueTypes
from headrace.rules.rule import Rule, RuleSet, TruthValue
from headrace.rules.subsetting import migrated, subset_of_truncate

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RowEvaluation"]

_COMPILED_MAX = 4096  # table versions times commands times conditions; a table has a new version with each ALTER
_OPEN = TRUE | FALSE


@dataclass(frozen=True, slots=True)
class _Verdict:
    """For the rows of one group: the rule set's verdict, and their new commands (0: unchanged)."""

    outcome: NDArray[np.uint8]
    command: NDArray[np.uint8] | None


class RowEvaluation:
    """Evaluates one rule set whose rules have conditions.

    Args:
        rules: one client's rules.
        types: types of the values' database.
    """

    def __init__(self, rules: RuleSet, types: ValueTypes) -> None:
        self._rules, self._types = rules, types
        self._compiled: dict[tuple[int, Image | None, int, Command], CompiledCondition | int] = {}

    def filter(self, batch: LcrBatch) -> LcrBatch:
        """Remove the rows that the rules discard; rows of a subset migrate. Transactions, tables and tags stay.

        Args:
            batch: any batch with rows.

        Raises:
            ConditionError: a condition cannot be evaluated: a column is missing, or its value is not in the log.
        """
        owner = row_transactions(batch.transactions)
        tag = batch.transactions.tag[owner]
        keep = np.ones(batch.row_count, np.bool_)
        commands: dict[int, NDArray[np.uint8]] = {}
        for number, group in enumerate(batch.groups):
            table = batch.tables[group.table]
            if self._is_decided(batch, table, tag[group.row_numbers], keep, group.row_numbers):
                continue
            verdict = self._verdict(
                _rows(batch, table, group.command, owner[group.row_numbers], old=group.old, new=group.new)
            )
            keep[group.row_numbers] = verdict.outcome == TRUE
            if verdict.command is not None and verdict.command.any():
                commands[number] = verdict.command
        truncates = [self._truncate(batch, truncate, owner, keep) for truncate in batch.truncates]
        if keep.all() and not commands and not any(truncates):
            return batch
        if any(truncates):
            batch = _with_truncates(
                batch, [found or (truncate, ()) for found, truncate in zip(truncates, batch.truncates, strict=True)]
            )
        return select_rows(migrated(batch, commands, keep), keep)

    # ----------------------------------------------------------------------- inside

    def _is_decided(
        self,
        batch: LcrBatch,
        table: TableVersion,
        tag: NDArray[np.int16],
        keep: NDArray[np.bool_],
        rows: NDArray[np.int32],
    ) -> bool:
        """Return whether name and tag decide for all of a group's rows; `keep` is set then."""
        answers = {}
        for place in np.unique(tag).tolist():
            value = None if place < 0 else batch.tags[place].value
            answers[place] = self._rules.prefilter(table.owner, table.name, tag=value)
        if TruthValue.MAYBE in answers.values():
            return False
        for place, answer in answers.items():
            keep[rows[tag == place]] = answer is TruthValue.TRUE
        return True

    def _verdict(self, rows: Rows) -> _Verdict:
        table = rows.table
        discarded: Outcome = FALSE
        for rule in self._rules.exclude:
            if rule.dml and rule.matches_object(table.owner, table.name):
                discarded = either(discarded, self._conditional(rule, rows))
        taken: Outcome = FALSE if self._rules.include is not None else TRUE
        command: NDArray[np.uint8] | None = None
        for rule in self._rules.include or ():
            if not rule.dml or not rule.matches_object(table.owner, table.name):
                continue
            found = self._conditional(rule, rows)
            if rule.subset is not None:
                found, becomes = self._of_subset(rule, rows, found)
                # If another rule takes the row, it takes it unchanged.
                is_alone = np.broadcast_to(np.asarray(taken), rows.count) != TRUE
                becomes = np.where(
                    is_alone & (np.broadcast_to(np.asarray(found), rows.count) == TRUE), becomes, 0
                ).astype(np.uint8)
                command = becomes if command is None else np.where(command == 0, becomes, command).astype(np.uint8)
            elif command is not None:
                command[np.broadcast_to(np.asarray(found), rows.count) == TRUE] = 0
            taken = either(taken, found)
        outcome = np.broadcast_to(np.asarray(both(taken, negated(discarded)), np.uint8), rows.count)
        if (outcome == _OPEN).any():
            raise self._undecided(rows)
        return _Verdict(outcome, command)

    def _conditional(self, rule: Rule, rows: Rows) -> Outcome:
        """Return the rule's outcome without its subset."""
        answers = [rule.tags.answer(tag) is TruthValue.TRUE for tag in (*rows.tags, None)]
        places = np.unique(rows.tag)
        found: Outcome
        if len({answers[place] for place in places.tolist()}) == 1:
            found = TRUE if answers[int(places[0])] else FALSE
        else:
            found = np.where(np.array(answers, np.bool_)[rows.tag], TRUE, FALSE).astype(np.uint8)
        if rule.condition is None or (isinstance(found, int) and found == FALSE):
            return found
        return both(found, self._settled(rule.condition, None, rows))

    def _of_subset(self, rule: Rule, rows: Rows, found: Outcome) -> tuple[Outcome, NDArray[np.uint8]]:
        """Return whether a row was or is in the subset, and the command that its change becomes."""
        assert rule.subset is not None
        becomes = np.zeros(rows.count, np.uint8)
        if rows.command is Command.TRUNCATE:
            return found, becomes
        was: Outcome = FALSE if rows.command is Command.INSERT else self._settled(rule.subset, Image.OLD, rows)
        now: Outcome = FALSE if rows.command is Command.DELETE else self._settled(rule.subset, Image.NEW, rows)
        either_way = either(was, now)
        if rows.command is Command.UPDATE:
            before, after = (np.broadcast_to(np.asarray(each, np.uint8), rows.count) for each in (was, now))
            becomes[(before == FALSE) & (after == TRUE)] = Command.INSERT
            becomes[(before == TRUE) & (after == FALSE)] = Command.DELETE
            if bool(
                (
                    ((before == _OPEN) | (after == _OPEN))
                    & np.broadcast_to(np.asarray(both(found, either_way)) != FALSE, rows.count)
                ).any()
            ):
                raise self._undecided(rows)
        return both(found, either_way), becomes

    def _settled(self, condition: Condition, image: Image | None, rows: Rows) -> Outcome:
        """Return a rule's verdict on a condition; `image`: the meaning of a name without a prefix."""
        key = (id(condition), image, rows.table.version, rows.command)
        found = self._compiled.get(key)
        if found is None:
            if len(self._compiled) >= _COMPILED_MAX:
                self._compiled.clear()
            found = self._compiled[key] = self._prepared(condition, image, rows)
        return found if isinstance(found, int) else settled(found.outcomes(rows))

    def _prepared(self, condition: Condition, image: Image | None, rows: Rows) -> CompiledCondition | int:
        meant = condition.tree if image is None else of_image(condition.tree, image)
        # For a table that the condition does not concern, and that need not have its columns: `check` does not require
        # them either.
        answer = decided(meant, rows.table.owner, rows.table.name, rows.command)
        return CompiledCondition(meant, rows.table, self._types) if answer is None else answer

    def _truncate(
        self, batch: LcrBatch, truncate: Truncate, owner: NDArray[np.int32], keep: NDArray[np.bool_]
    ) -> tuple[Truncate, tuple[TableVersion, ...]] | None:
        """Return a TRUNCATE of the tables that pass, and their replacing versions; None: nothing changes."""
        number = truncate.row_number
        place = batch.transactions.tag[owner[number : number + 1]]
        tables: list[int] = []
        changed: list[TableVersion] = []
        for each in truncate.tables:
            table = batch.tables[each]
            ignored = np.zeros(batch.row_count, np.bool_)
            if self._is_decided(batch, table, place, ignored, np.array([number], np.int32)):
                passes, subset = bool(ignored[number]), None
            else:
                rows = _rows(batch, table, Command.TRUNCATE, owner[number : number + 1])
                passes = bool(self._verdict(rows).outcome[0] == TRUE)
                subset = self._subset_rule(rows) if passes else None
            if passes:
                tables.append(each if subset is None else len(batch.tables) + len(changed))
                changed += [] if subset is None else [subset_of_truncate(table, subset)]
        keep[number] = bool(tables)
        if tuple(tables) == truncate.tables:
            return None
        return replace(truncate, tables=tuple(tables)), tuple(changed)

    def _subset_rule(self, rows: Rows) -> Condition | None:
        """Return the subset that a TRUNCATE empties; None: the whole table."""
        table = rows.table
        matching = [
            rule
            for rule in self._rules.include or ()
            if rule.dml
            and rule.matches_object(table.owner, table.name)
            and bool(np.all(np.asarray(self._conditional(rule, rows)) == TRUE))
        ]  # for this TRUNCATE's tag: `RuleSet.subset_of` is for all tags
        return matching[0].subset if matching and all(rule.subset is not None for rule in matching) else None

    def _undecided(self, rows: Rows) -> ConditionError:
        rules = [
            rule
            for rule in (*(self._rules.include or ()), *self._rules.exclude)
            if rule.matches_object(rows.table.owner, rows.table.name)
        ]
        columns: dict[str, None] = {}
        for rule in rules:
            for condition in rule.conditions:
                columns |= {value.column: None for value in condition.columns}
        return ConditionError(
            f"rules need values of {rows.table.qualified_name} ({', '.join(columns)}) that the log of {rows.source}"
            " does not have",
            hint=LOG_WHOLE_ROWS,
            table=rows.table.qualified_name,
            command=rows.command.name,
        )


def _rows(
    batch: LcrBatch,
    table: TableVersion,
    command: Command,
    owner: NDArray[np.int32],
    *,
    old: ColumnValues | None = None,
    new: ColumnValues | None = None,
) -> Rows:
    """Return rows of a batch for conditions; `owner`: place of each row's transaction, int32, shape (n,)."""
    transactions = batch.transactions
    return Rows(
        table=table,
        command=command,
        count=owner.shape[0],
        old=old,
        new=new,
        source=batch.source,
        tags=tuple(each.value for each in batch.tags),
        tag=transactions.tag[owner],
        transaction_id=transactions.transaction_id[owner],
        scn=transactions.order_scn[owner],
        source_time_us=transactions.commit_time_us[owner],
    )


def _with_truncates(batch: LcrBatch, found: list[tuple[Truncate, tuple[TableVersion, ...]]]) -> LcrBatch:
    """Return the batch with other TRUNCATEs; new versions are added behind its own."""
    tables = list(batch.tables)
    truncates = []
    for truncate, added in found:
        places = {len(batch.tables) + number: len(tables) + number for number in range(len(added))}
        tables += added
        truncates.append(replace(truncate, tables=tuple(places.get(table, table) for table in truncate.tables)))
    return replace(batch, tables=tuple(tables), truncates=tuple(truncates))
