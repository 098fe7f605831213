"""Three-way comparison: each changed part at the destination is as before the change, as after it, or neither.

    as after     an operator made the change already: passed over
    as before    it is to be made
    neither      a conflict, which nobody but an operator can decide

Columns are compared by attribute, so that a new default is no matter of a column's type. A column is dropped or renamed
if its type is the expected one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.databases.postgres.ddl.conversions import Cast, casts_of
from headrace.databases.postgres.ddl.key_text import differs_in_deferral, is_foreign_key, is_like_key, key_text
from headrace.databases.postgres.ddl.refusals import ATTRIBUTES, column_refusal, part_refusal
from headrace.lcr.ddl_record import DdlRecord
from headrace.lcr.structure import (
    Altered,
    ColumnPart,
    ConstraintPart,
    Delta,
    IndexPart,
    Part,
    PartKind,
    PartName,
    Structure,
    elements,
)

__all__ = ["Compared", "Rename", "Work", "compare"]

_TYPE = ATTRIBUTES["type"]
_UNKNOWN = "it is not known which table it refers to"


class Rename(NamedTuple):
    """A part that gets another name."""

    kind: PartKind
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is to be done to one table at a destination; parts are those of the source after its change.

    Args:
        dropped: parts of the destination to drop.
        renames: parts of the destination to rename.
        altered: columns with the attributes that they are to get, under their new names.
        added: columns to add.
        casts: for columns with a type to get, how their values are converted; by assignment if it is not said.
        built: constraints and indexes to bring into their form. A column's new name or type may do that alone.
        loose: foreign keys that are left out, and that a change of columns may alter or drop.
    """

    dropped: tuple[PartName, ...] = ()
    renames: tuple[Rename, ...] = ()
    altered: tuple[tuple[ColumnPart, frozenset[str]], ...] = ()
    added: tuple[ColumnPart, ...] = ()
    casts: Mapping[str, Cast] = field(default_factory=dict)
    built: tuple[ConstraintPart | IndexPart, ...] = ()
    loose: frozenset[PartName] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.renames or self.altered or self.added or self.built)

    @property
    def has_other_columns(self) -> bool:
        """Whether columns get other names or types, so that definitions which name them change with them."""
        return any(each.kind is PartKind.COLUMN for each in self.renames) or any(
            "type" in attributes for _, attributes in self.altered
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of a comparison.

    Args:
        work: what is to be done.
        passed_over: parts that are as after the change already.
        left_out: why parts of the change are not replicated; the others are.
        refusals: why none of it is replicated.
        conflicts: one text for each part that is neither as before nor as after.
    """

    work: Work
    passed_over: tuple[PartName, ...]
    left_out: tuple[str, ...]
    refusals: tuple[str, ...]
    conflicts: tuple[str, ...]


def compare(record: DdlRecord, here: Structure, keys: Mapping[str, str]) -> Compared:
    """Compare what a change did at the source with the destination's table.

    Args:
        record: the change, of a table that was there before and after it.
        here: the table at the destination.
        keys: for each foreign key of the table after the change, why it is not made here; empty: it may be.
    """
    comparison = _Comparison(record=record, delta=record.delta, here=elements(here), keys=keys)
    for pair in comparison.delta.altered:
        comparison.alter(pair)
    for part in comparison.delta.added:
        comparison.add(part)
    for part in comparison.delta.dropped:
        comparison.drop(part)
    for key in comparison.delta.gone:
        comparison.drop_unknown(key)
    for part in comparison.delta.recreated:
        comparison.recreate(part)
    return comparison.result()


@dataclass(slots=True, kw_only=True)
class _Comparison:
    """The state of one comparison: renamed and altered parts come first, then added ones, then dropped ones.

    `vacated` has names of the destination that renaming makes free, `settled` those that have the part of the source
    after the change.
    """

    record: DdlRecord
    delta: Delta
    here: dict[PartName, Part]
    keys: Mapping[str, str]
    before: dict[PartName, Part] = field(init=False)
    after: dict[PartName, Part] = field(init=False)
    vacated: set[PartName] = field(default_factory=set)
    settled: set[PartName] = field(default_factory=set)
    replaced: set[PartName] = field(default_factory=set)
    dropped: list[PartName] = field(default_factory=list)
    renames: list[Rename] = field(default_factory=list)
    altered: list[tuple[ColumnPart, frozenset[str]]] = field(default_factory=list)
    added: list[ColumnPart] = field(default_factory=list)
    built: list[ConstraintPart | IndexPart] = field(default_factory=list)
    passed_over: list[PartName] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    loose: set[PartName] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.before, self.after = elements(self.record.before), elements(self.record.after)

    def result(self) -> Compared:
        """Return what was found."""
        return Compared(
            work=Work(
                dropped=tuple(self.dropped),
                renames=tuple(self.renames),
                altered=tuple(self.altered),
                added=tuple(self.added),
                casts=casts_of(self.record),
                built=tuple(self.built),
                loose=frozenset(self.loose),
            ),
            passed_over=tuple(self.passed_over),
            left_out=tuple(self.left_out),
            refusals=tuple(self.refusals),
            conflicts=tuple(self.conflicts),
        )

    # ------------------------------------------------------------------ kinds of changes

    def alter(self, pair: Altered) -> None:
        """Compare a part that got another name or shape."""
        new = now = pair.after.key
        if pair.is_renamed:
            found = self._renamed(pair)
            if found is None:
                return
            now = found
        if isinstance(pair.before, ColumnPart) and isinstance(pair.after, ColumnPart):
            self._alter_column(pair.before, pair.after, now)
            return
        part, follows = self.here.get(now), self.delta.has_other_columns
        if _is_same(part, pair.after):
            self._note(new, is_there=now == new)
        elif _is_like(part, pair.before):
            self._build(pair.after, found=part, follows=follows)
        elif part is None and pair.before.number != pair.after.number and not follows:
            self._build(pair.after, follows=False)  # the source dropped it and made another one
        elif part is None:
            self._miss(new)
        elif follows and not pair.is_renamed:
            # The source's part followed its columns. The destination has one of its own, as before.
            self.left_out.append(f"{new} is another one at the destination, and stays")
        elif reason := self._key_refusal(pair.after):
            self._leave_out(pair.after, reason)
        else:
            self._conflict(now, pair.before, pair.after)

    def _renamed(self, pair: Altered) -> PartName | None:
        """Compare the name of a renamed part, which may have another shape as well.

        Returns:
            The name that it has at the destination now; None: undecided, and there is nothing more to compare.
        """
        old, new = pair.before.key, pair.after.key
        was, named = self.here.get(old), self.here.get(new)
        is_before = _is_like(was, pair.before, pair.after) and (named is None or new in self.before)
        is_after = _is_like(named, pair.before, pair.after) and (was is None or old in self.after)
        if is_before and is_after and new.kind is PartKind.COLUMN:
            # Columns of one type exchanged their names, by changes of which at least one was not recorded.
            self.conflicts.append(f"{old} and {new} may have exchanged their names already, which nothing shows")
            return None
        if is_after:
            self.settled.add(new)
            return new
        if not is_before and was is None and named is None and new.kind is not PartKind.COLUMN:
            self._miss(new)
            return None
        if not is_before:
            self._conflict(new if was is None else old, pair.before, pair.after)
            return None
        self.renames.append(Rename(old.kind, old.name, new.name))
        self.vacated.add(old)
        return old

    def _alter_column(self, before: ColumnPart, after: ColumnPart, now: PartName) -> None:
        column = self.here.get(now)
        if not isinstance(column, ColumnPart):
            self._conflict(now, before, after)
            return
        wanted = set()
        for name, attribute in ATTRIBUTES.items():
            if attribute(before) == attribute(after) or attribute(column) == attribute(after):
                continue
            if name == "default" and before.generated and after.generated and self.delta.has_other_columns:
                continue  # the expression follows the columns' names and types
            wanted.add(name)
            if attribute(column) != attribute(before) and not _is_free(column, before, name):
                self._conflict(now, before, after, name)
        if not wanted:
            self._note(after.key, is_there=now == after.key)
        elif reason := column_refusal(before, after, wanted):
            self.refusals.append(reason)
        else:
            self.altered.append((after, frozenset(wanted)))

    def add(self, part: Part) -> None:
        """Compare a part that the change added."""
        found = None if part.key in self.vacated else self.here.get(part.key)
        is_there = _is_same(found, part)
        if found is None:
            self._create(part)
        elif isinstance(part, ColumnPart) and _is_like(found, *self._earlier(part)):
            # The column was dropped and added again. Even where the two are alike, their values are not.
            self.replaced.add(part.key)
            self._create(part)
        elif is_there:
            self.settled.add(part.key)
            self._note(part.key, is_there=True)
        elif reason := self._key_refusal(part):
            self._leave_out(part, reason)
        elif reason := part_refusal(part):
            self.refusals.append(reason)
        else:
            self._conflict(part.key, next(iter(self._earlier(part)), None), part)

    def _earlier(self, part: Part) -> tuple[Part, ...]:
        """Return the part that the change dropped before it added this one under the same name, if there is one."""
        return tuple(each for each in self.delta.dropped if each.key == part.key)

    def drop(self, part: Part) -> None:
        """Compare a part that the change dropped."""
        found = self.here.get(part.key)
        if found is None or part.key in self.settled:
            self._note(part.key, is_there=part.key not in self.after)
        elif part.key in self.replaced or _is_like(found, part):
            self.dropped.append(part.key)
        else:
            self._conflict(part.key, part, None)

    def drop_unknown(self, key: PartName) -> None:
        """Compare a part that the change dropped, and that no record of the source describes."""
        found = self.here.get(key)
        if found is None:
            return
        if isinstance(found, ColumnPart):
            self.conflicts.append(
                f"{key} was dropped, and what it was before that is not known; here: {found.definition}"
            )
        else:
            # It may be the destination's own. The source drops a constraint with NOT NULL, whose name is free here.
            self.left_out.append(f"{key} was dropped, and what it was before that is not known: it stays")

    def recreate(self, part: ConstraintPart | IndexPart) -> None:
        """Compare a part that the change made again as it was: it goes with a column that is dropped."""
        if not any(key.kind is PartKind.COLUMN for key in self.dropped) or not _is_same(self.here.get(part.key), part):
            return
        self._build(part, follows=not is_foreign_key(part))

    # ------------------------------------------------------------------ findings

    def _create(self, part: Part) -> None:
        if not isinstance(part, ColumnPart):
            self._build(part, follows=False)
        elif reason := part_refusal(part):
            self.refusals.append(reason)
        else:
            self.added.append(part)

    def _build(self, part: Part, *, found: Part | None = None, follows: bool) -> None:
        """Note a constraint or an index.

        Args:
            part: as it is to be.
            found: as it is here, under this name or its former one.
            follows: it may come into its form with the columns, without a statement of its own.
        """
        assert not isinstance(part, ColumnPart)
        if is_foreign_key(part) and (differs_in_deferral(found, part) or (follows and _is_carried(found, part))):
            self.built.append(part)  # no row is checked
            return
        if reason := self._key_refusal(part):
            self._leave_out(part, reason)
            return
        reason = part_refusal(part)
        if reason and not follows:
            self.refusals.append(reason)
        else:
            self.built.append(part)

    def _note(self, key: PartName, *, is_there: bool) -> None:
        if is_there:
            self.passed_over.append(key)

    def _miss(self, key: PartName) -> None:
        """Note a part that the source altered and the destination never had, or has no more."""
        self.left_out.append(f"{key} is not at the destination")

    def _key_refusal(self, part: Part) -> str:
        """Return why a foreign key is left out, while the rest of the change is made; empty: it is not, or is none."""
        return (part_refusal(part) or self.keys.get(part.name, _UNKNOWN)) if is_foreign_key(part) else ""

    def _leave_out(self, key: Part, reason: str) -> None:
        self.loose.add(key.key)
        self.left_out.append(reason if reason.startswith(str(key.key)) else f"{key.key}: {reason}")

    def _conflict(self, key: PartName, before: Part | None, after: Part | None, what: str = "") -> None:
        of = f"{what} of {key}" if what else str(key)
        forms = (("here", self.here.get(key)), ("before the change", before), ("after it", after))
        said = "; ".join(f"{where}: {'none' if part is None else part.definition}" for where, part in forms)
        self.conflicts.append(f"{of} is neither as before the change nor as after it ({said})")


def _is_carried(found: Part | None, part: Part) -> bool:
    """Return whether a foreign key comes into its form with columns of its table, to which it may refer itself."""
    one, other = key_text(found), key_text(part)
    if one is None or other is None:
        return False
    return (one.table, one.actions, one.checks) == (other.table, other.actions, other.checks)


def _is_free(column: ColumnPart, before: ColumnPart, name: str) -> bool:
    """Return whether an attribute at the destination may differ from the one before the change.

    It may where there is none to lose, and where the one before the change was not replicated.
    """
    if name == "default":
        return column.default is None or before.calls
    return name == "NOT NULL" and before.not_valid


def _is_same(found: Part | None, part: Part) -> bool:
    return found is not None and found.shape == part.shape


def _is_like(found: Part | None, *parts: Part) -> bool:
    """Return whether a part of the destination may be changed, dropped or renamed as one of these was."""
    return any(
        _TYPE(found) == _TYPE(part)
        if isinstance(found, ColumnPart) and isinstance(part, ColumnPart)
        else _is_same(found, part) or is_like_key(found, part)
        for part in parts
    )
