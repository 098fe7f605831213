"""How a source's table version maps to a destination table: which columns find a row, and which are written.

Values pass in the source's form, so the types must be equal or convertible; the destination decides.

The columns that find a row (manual: the row's identity):

    a substitute key       its columns, whose old values must be in the log; with a NULL in it, all columns together
    old values FULL        the destination's key; without one, or with a NULL in it, all columns together
    old values KEY         the source's identity, the only old values there are

Successive changes of a row may be collapsed only if the result cannot differ: the columns that find a row must be the
destination's only unique key. A substitute key that is none of them is not collapsed: which rows it finds depends on
each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from headrace.base.errors import UnfitTableError
from headrace.databases.applied_tables import are_errors
from headrace.databases.ports import DestinationColumn, DestinationTable
from headrace.lcr.batch import Column, Command, OldImage, TableVersion, content_version
from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, NOTHING_SET, ConflictRules, TableConflicts
from headrace.rules.table_settings import NO_TABLE_SETTINGS, TableSettings
from headrace.rules.user_code.handlers import NO_HANDLERS, HandlerRules
from headrace.rules.virtual_dependencies import NO_VIRTUAL_DEPENDENCIES, VirtualDependencies
from spark_apply.keys.equality import Equality, equality_of, form_of_match, forms_of, touch_of
from spark_apply.keys.hash_kernels import hash_text
from spark_apply.keys.relations import NO_RELATIONS, Relations, relations_of

if TYPE_CHECKING:
    from spark_apply.apply_config import ApplyConfig

__all__ = ["Describe", "HashedKey", "Renamed", "TableFit", "TableFits", "TableVersions"]

_Key = TypeVar("_Key")
_VERSIONS_MAX = 16  # per table; a table altered more often than that while one transaction waits has never been seen
# of a table that is altered while it is described; each costs some milliseconds, and the apply process looks again soon
_DESCRIPTIONS_MAX = 10

Describe = Callable[[str, str], "DestinationTable | None"]
"""Returns the destination's current description of a table (owner, name); None: it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedKey:
    """A unique key of the destination table, in terms of the LCRs' columns.

    Args:
        columns: positions in the source version.
        equalities: canonical form per column.
        seed: hash of the table's name and the columns' numbers. A renamed column keeps its number, so older entries of
            the error queue are found.
        is_identity: NULLs count as values (the key that finds rows); False: a key with a NULL is never equal.
    """

    columns: tuple[int, ...]
    equalities: tuple[Equality, ...]
    seed: int
    is_identity: bool

    @property
    def form(self) -> int:
        """What tells hashes of this key from those under another name of its table, or of other canonical forms.

        31 bits.
        """
        return hash_text(f"{self.seed} {' '.join(str(int(each)) for each in self.equalities)}") & 0x7FFF_FFFF


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """A source version and the destination table it is applied to.

    Args:
        version: the source's description.
        table: the destination's description.
        conflicts: what is compared, and what happens on a conflict.
        relations: what its rows have in common with those of other tables.
        handlers: users' handlers, of all tables.
        unfit: why the table does not fit, where its rows are errors (`column_mismatch: error`); `table` is then made
            up.
    """

    version: TableVersion
    table: DestinationTable
    conflicts: TableConflicts = NOTHING_SET
    relations: Relations = NO_RELATIONS
    handlers: HandlerRules = NO_HANDLERS
    unfit: str = ""

    @cached_property
    def taking_touch(self) -> int:
        """Hash for the order of rows that may take values of a key that are not in the log.

        0: there are none (see `spark_apply.dependencies.hashes`).

        Of all versions of a table, whatever their replica identity: rows of one whose log has all values depend on
        those of one that lacks some.
        """
        may_lack = len(self.hashed_keys) > 1 and any(len(key.columns) > 1 for key in self.hashed_keys)
        return _order_touch(self.version.owner, self.version.name) if may_lack else 0

    def order_touches(self, command: Command) -> tuple[tuple[int, bool], ...]:
        """What else orders rows of a command, beside their keys.

        Hashes like `touch`, and whether each is exclusive use.

        A handler's SQL touches what it likes: handled rows of all tables come one after another, and in order with the
        rows of their own table and of those that the handler declares.

        Args:
            command: of the rows.
        """
        return self._order_touches.get(command, ())

    @cached_property
    def _order_touches(self) -> dict[Command, tuple[tuple[int, bool], ...]]:
        mine = (self.version.owner, self.version.name)
        if mine not in self.handlers.ordered:
            return {}
        found: dict[Command, tuple[tuple[int, bool], ...]] = {}
        for command in Command:
            handlers = self.handlers.dml_of(*mine, command.name.lower())
            alone = dict.fromkeys(table for each in handlers for table in (_EVERY_HANDLER, mine, *each.tables))
            found[command] = tuple((_order_touch(*table), True) for table in alone) or ((_order_touch(*mine), False),)
        return found

    @cached_property
    def _places(self) -> dict[str, int]:
        return {column.name: place for place, column in enumerate(self.version.columns)}

    @cached_property
    def _targets(self) -> tuple[DestinationColumn, ...]:
        """The destination's column of each source column."""
        by_name = {column.name: column for column in self.table.columns}
        return tuple(by_name[column.name] for column in self.version.columns)

    @cached_property
    def key(self) -> tuple[int, ...]:
        """The destination's best key of which the LCRs carry all columns, as positions in the version.

        Empty: there is none.

        A substitute key takes precedence, and the LCRs carry all of it: else the table does not fit. A key with a
        column that the destination computes finds no row: the LCR's value of it may be another one.
        """
        if self.table.is_substitute:
            return self._arriving(self.table.key)
        keys = (
            key
            for key in self.table.identifying_keys
            if not any(self.table.columns[place].is_generated for place in key)
        )
        return next((found for key in keys if (found := self._arriving(key))), ())

    def _arriving(self, key: tuple[int, ...]) -> tuple[int, ...]:
        """A key of the destination as positions in the version; empty when the LCRs lack a column of it."""
        names = [self.table.columns[place].name for place in key]
        return tuple(self._places[name] for name in names) if all(name in self._places for name in names) else ()

    def _is_mixed(self, key: tuple[int, ...]) -> bool:
        """Whether the LCRs do not show which rows collide in a key.

        They carry only some of its columns, or the destination computes one.

        It may compute another value than the one that arrives. So may a trigger a column that does not arrive.
        """
        come = [self.table.columns[place].name in self._places for place in key]
        is_computed = any(self.table.columns[place].is_generated for place in key)
        return is_computed or (not all(come) and (any(come) or self.table.fires))

    @cached_property
    def match(self) -> tuple[int, ...]:
        """Positions in the version that find a row."""
        if self.version.old_image is OldImage.KEY and not self.table.is_substitute:
            found = tuple(place for place, column in enumerate(self.version.columns) if column.is_key)
        else:
            found = self.key
        return found or self.all_columns

    @cached_property
    def is_keyless(self) -> bool:
        """Whether rows are found by all their values, so that duplicates are possible."""
        return not self.key and self.match == self.all_columns

    @cached_property
    def all_columns(self) -> tuple[int, ...]:
        """Positions of every column except those that the destination computes."""
        return tuple(place for place, target in enumerate(self._targets) if not target.is_generated)

    @cached_property
    def is_collapsible(self) -> bool:
        """Whether writing only the net change of a row gives the same result."""
        return (
            not self.table.ordered
            and len(self.table.unique_keys) <= 1
            and bool(self.key)
            and set(self.key) == set(self.match)
            and (not self.table.is_substitute or set(self.table.key) in map(set, self.table.unique_keys))
        )

    def compared(self, command: Command) -> frozenset[int]:
        """Positions in the version whose old values are compared, as far as they are in the LCRs.

        Args:
            command: UPDATE or DELETE.
        """
        return self._compared[command]

    @cached_property
    def _compared(self) -> dict[Command, frozenset[int]]:
        names = [column.name for column in self.version.columns]
        return {
            command: frozenset(place for place in self.all_columns if self.conflicts.compares(command, names[place]))
            for command in (Command.UPDATE, Command.DELETE)
        }

    @cached_property
    def touch(self) -> int:
        """Hash that stands for any row of the table."""
        return touch_of(f"{self.version.owner}\0{self.version.name}")

    @cached_property
    def forms(self) -> tuple[int, ...]:
        """The forms of the table and of those that it refers to, and of what finds its rows.

        See `spark_apply.keys.equality.forms_of`.
        """
        found_by = form_of_match(
            self.version.owner, self.version.name, (self._targets[place].number for place in self.match)
        )
        return tuple(dict.fromkeys((*forms_of(self.table), found_by, *self.relations.forms)))

    @cached_property
    def hashed_keys(self) -> tuple[HashedKey, ...]:
        """Every unique key of which the LCRs carry all columns; the key that finds rows comes first."""
        keys = [self.match] if not self.is_keyless else []
        keys += [arriving for key in self.table.unique_keys if (arriving := self._arriving(key))]
        found: dict[frozenset[int], HashedKey] = {}
        for columns in keys:
            ordered = tuple(sorted(columns, key=lambda place: self._targets[place].number))
            if frozenset(columns) not in found:
                found[frozenset(columns)] = self._hashed(ordered, is_identity=not found)
        return tuple(found.values())

    @cached_property
    def noted_key(self) -> HashedKey | None:
        """The key by which the times of rows are noted; None: its values do not show which keys are equal."""
        ordered = tuple(sorted(self.key, key=lambda place: self._targets[place].number))
        found = self._hashed(ordered, is_identity=True)
        return found if ordered and Equality.NONE not in found.equalities else None

    def _hashed(self, columns: tuple[int, ...], *, is_identity: bool) -> HashedKey:
        numbers = " ".join(str(self._targets[place].number) for place in columns)
        return HashedKey(
            columns=columns,
            equalities=tuple(equality_of(self._targets[place], self.version.columns[place]) for place in columns),
            seed=hash_text(f"{self.version.owner}\0{self.version.name}\0\0{numbers}"),
            is_identity=is_identity,
        )

    @cached_property
    def is_serialised(self) -> bool:
        """Whether values do not show all dependencies: transactions on the table then run serially."""
        return (
            self.table.serialise
            or self.is_keyless
            or not self.hashed_keys
            or any(self._is_mixed(key) for key in self.table.unique_keys)
            or any(Equality.NONE in key.equalities for key in self.hashed_keys)
        )

    @cached_property
    def has_free_inserts(self) -> bool:
        """Whether INSERTs of a serialised table depend on no other INSERT of it.

        Nothing at the destination can refuse a row because of another one.

        No value of an LCR is in a unique key there. An UPDATE, a DELETE or a TRUNCATE may reach any row, so it has the
        table to itself. Not where rows must keep their order for another reason: `DestinationTable.ordered` (an
        exclusion constraint, a unique index over an expression or over a part of the rows, a trigger that fires for
        what apply writes), a key that the file sets, conflict handlers, a DML handler or an error handler of INSERTs:
        its SQL may read, or change, rows of the table that came before.
        """
        table, insert = (self.version.owner, self.version.name), Command.INSERT.name.lower()
        is_refused = any(self._is_mixed(key) or self._arriving(key) for key in self.table.unique_keys)
        is_handled = bool(
            self.conflicts.handlers or self.handlers.dml_of(*table, insert) or self.handlers.error_of(*table, insert)
        )
        return not (is_refused or is_handled or self.table.ordered or self.table.is_substitute)


_EVERY_HANDLER = ("", "")  # no table: what every handled row uses alone


def _order_touch(owner: str, name: str) -> int:
    """As the table's own touch, for the order alone."""
    return touch_of(f"order\0{owner}\0{name}")


def _new_names(old: TableVersion, new: TableVersion) -> dict[str, str] | None:
    """The new names of a version's columns in a newer one, without dropped columns; None: they cannot be determined.

    A log describes columns in their order, which never changes: new ones follow at the end, dropped ones leave a gap.
    So if one name is gone (or belongs to another column now) and one name of the same type is new in that place, the
    column was renamed.
    """
    before, after = {column.name for column in old.columns}, {column.name for column in new.columns}
    names: dict[str, str] = {}
    rest = list(new.columns)
    for column in old.columns:
        there = rest[0] if rest else None
        is_renamed = there is not None and there.name not in before and there.type_name == column.type_name
        if there is not None and (is_renamed or there.name == column.name):
            names[column.name] = rest.pop(0).name
        elif column.name in after:
            return None
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A version with newer names.

    Args:
        version: with the names of `newer`.
        newer: the version that has these names.
        is_ambiguous: an old name belongs to another column in `newer`: a table like `newer` fits both.
    """

    version: TableVersion
    newer: TableVersion
    is_ambiguous: bool


def _renamed(version: TableVersion, newer: TableVersion, names: Mapping[str, str]) -> Renamed | None:
    """The version with new names; None: it has these names already, or another column has a dropped column's name."""
    columns = tuple(replace(column, name=names.get(column.name, column.name)) for column in version.columns)
    if columns == version.columns or len({column.name for column in columns}) < len(columns):
        return None
    named, there = replace(version, columns=columns), {column.name for column in newer.columns}
    return Renamed(
        version=replace(named, version=content_version(named)),
        newer=newer,
        is_ambiguous=any(old != new and old in there for old, new in names.items()),
    )


class TableVersions:
    """The versions of each table in order of arrival; outlives restarts of the reader, but not of the process.

    The log describes partitions one by one, with the name of their table. A rename affects all of them, but
    the order of their columns may differ: one shows the rename for another only when a single column was renamed.
    """

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, TableVersion]] = {}
        # Of all partitions of a table together, by its number; by name in batches of earlier versions, which lack it.
        self._forms: dict[int | tuple[str, str], dict[tuple[Column, ...], TableVersion]] = {}

    def note(self, tables: Iterable[TableVersion]) -> None:
        """Record the versions of a batch, in the order of its rows."""
        for table in tables:
            seen = self._seen.setdefault(table.object_number, {})
            if table.version not in seen:
                _remember(seen, table.version, table)
                forms = self._forms.setdefault(_root_of(table), {})
                if table.columns not in forms:
                    _remember(forms, table.columns, table)

    def renamed(self, version: TableVersion) -> Iterator[Renamed]:
        """Yield the version with the names of each newer one, starting with its own newest."""
        found: list[Renamed | None] = []
        dropped: set[str] = set()
        for newer in _after(self._forms.get(_root_of(version), {}), version.columns):
            given = _new_names(version, newer)
            if given is None:
                continue
            dropped |= {column.name for column in version.columns} - given.keys()
            others = {old: new for old, new in given.items() if old != new and old not in dropped}
            if newer.object_number != version.object_number and len(others) == 1:
                found.append(_renamed(version, newer, others))
        last, names = version, {column.name: column.name for column in version.columns}
        for newer in _after(self._seen.get(version.object_number, {}), version.version):
            # Step by step: a dropped column must not reappear under the name of a column that was added later.
            step = _new_names(last, newer)
            last, names = newer, names if step is None else {k: step[v] for k, v in names.items() if v in step}
            found.append(_renamed(version, newer, names))
        return (renamed for renamed in reversed(found) if renamed is not None)


def _root_of(table: TableVersion) -> int | tuple[str, str]:
    """Tells which table it is: two tables can have one name behind transformations."""
    return int(table.root_number) or (table.owner, table.name)


def _remember(seen: dict[_Key, TableVersion], key: _Key, table: TableVersion) -> None:
    seen[key] = table
    if len(seen) > _VERSIONS_MAX:
        del seen[next(iter(seen))]


def _after(seen: Mapping[_Key, TableVersion], key: _Key) -> Iterable[TableVersion]:
    """The versions after a version; none if it is unknown or forgotten."""
    keys = list(seen)
    return [seen[later] for later in keys[keys.index(key) + 1 :]] if key in seen else []


def _like(version: TableVersion) -> DestinationTable:
    """A table in place of one that does not fit: its rows have no keys, so all of them are in order with each other."""
    columns = tuple(
        DestinationColumn(
            name=column.name,
            number=place,
            type_name=column.type_name,
            type_number=column.type_number,
            type_modifier=column.type_modifier,
            not_null=False,
            has_default=False,
            is_generated=False,
            is_identity_always=False,
            equality="none",
        )
        for place, column in enumerate(version.columns)
    )
    return DestinationTable(
        owner=version.owner, name=version.name, columns=columns, key=(), unique_keys=(), serialise=True, ordered=True
    )


class TableFits:
    """The fits of all table versions seen so far; queries the destination once per version.

    Args:
        describe: see `Describe`; must return the current state.
        missing_alter: returns the statements that are needed before rows of a version can be written; empty: it fits.
        conflicts: of the apply process; who writes nothing needs none.
        dependencies: virtual dependency definitions of the apply process.
        handlers: of the apply process.
        settings: of the apply process: what becomes of rows that do not fit.
    """

    def __init__(  # what an apply process is told of its tables, each kind by itself
        self,
        describe: Describe,
        missing_alter: Callable[[TableVersion], str],
        conflicts: ConflictRules = NO_CONFLICT_RULES,
        dependencies: VirtualDependencies = NO_VIRTUAL_DEPENDENCIES,
        handlers: HandlerRules = NO_HANDLERS,
        settings: TableSettings = NO_TABLE_SETTINGS,
    ) -> None:
        self._settings = settings
        self._describe, self._missing_alter, self._conflicts = describe, missing_alter, conflicts
        self._dependencies, self._handlers = dependencies, handlers
        self._fits: dict[tuple[int, int, str, str], TableFit] = {}
        self._missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, config: ApplyConfig, describe: Describe, missing_alter: Callable[[TableVersion], str]) -> TableFits:
        """The fits for whoever hashes rows of an apply process: with all that makes one row depend on another.

        Args:
            config: of the apply process.
            describe: see the class.
            missing_alter: see the class.
        """
        return cls(
            describe,
            missing_alter,
            dependencies=config.dependencies,
            handlers=config.handlers,
            settings=config.destination.tables,
        )

    @property
    def missing_tables(self) -> tuple[str, ...]:
        """Tables that virtual dependency definitions name and the destination did not have when a version was last seen for the first time.

        One that was renamed at both sites goes on under its new name: nothing else shows that its rows are in no order
        with others any more.
        """
        return self._missing

    def fit(self, version: TableVersion) -> TableFit:
        """The fit of a version.

        Raises:
            UnfitTableError: the destination table does not fit; the next call checks again.
        """
        # Its number is its sender's word: under another name it is another table.
        key = (version.object_number, version.version, version.owner, version.name)
        found = self._fits.get(key)
        if found is None:
            table = self._fitting(version)
            named = dict.fromkeys(self._dependencies.tables())
            self._missing = tuple(f"{owner}.{name}" for owner, name in named if self._describe(owner, name) is None)
            found = self._fits[key] = TableFit(
                version=version,
                table=table,
                conflicts=self._conflicts.of(version.owner, version.name),
                relations=relations_of(
                    version,
                    table,
                    self._describe,
                    self._dependencies,
                    checks_foreign_keys=self._settings.check_foreign_keys,
                ),
                handlers=self._handlers,
            )
        return found

    def _fitting(self, version: TableVersion) -> DestinationTable:
        """The table as it is now, if it fits.

        Raises:
            UnfitTableError: it does not.
        """
        # The order matters: describing reads the table again, and the check of a session uses the result.
        table = self._describe(version.owner, version.name)
        for _ in range(_DESCRIPTIONS_MAX):
            hint = self._missing_alter(version)
            if table is None or hint:
                break
            # Other checks read the catalog themselves: an ALTER between the two would leave a description that nothing
            # was checked of.
            described, table = table, self._describe(version.owner, version.name)
            if table == described:
                return described
        else:
            hint = "it is altered again and again"
        raise UnfitTableError(
            f"table {version.qualified_name} at the destination does not fit the LCRs: {hint or 'missing'}",
            hint=hint,
            table=version.qualified_name,
        )

    def fit_or_error(self, version: TableVersion) -> TableFit:
        """The fit of a version; where rows that do not fit are errors (`are_errors`), of one that does not fit.

        Such rows are refused row by row.

        It is not remembered: the table may be altered at any time.

        Raises:
            UnfitTableError: the destination table does not fit, and its rows wait for an ALTER.
        """
        try:
            return self.fit(version)
        except UnfitTableError as error:
            if not are_errors(version, self._settings):
                raise
            return TableFit(version=version, table=_like(version), handlers=self._handlers, unfit=f"{error.message}")

    def forget(self) -> None:
        """Forget all fits, because the destination may have changed; the next calls query it again."""
        self._fits.clear()
