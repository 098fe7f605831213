"""Map a source's table version to a destination table: which columns find a row, and which are written.

Values pass in the source's form, so the types must be equal or convertible; the destination decides.

The columns that find a row (manual: the row's identity):

    a substitute key       its columns, whose old values must be in the log; all columns together if one is NULL
    old values FULL        the destination's key; all columns together if there is no key or it has a NULL
    old values KEY         the source's identity, the only old values in the log

Successive changes of a row may be collapsed only if the result cannot differ: the columns that find a row must be the
destination's only unique key. A substitute key that is not a unique key is never collapsed: which rows it finds depends
on each change.
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
_VERSIONS_MAX = 16  # per table; no table was ever seen altered more often while one transaction waited
# Of a table that is altered while it is described. Each costs some milliseconds, and the apply process soon retries.
_DESCRIPTIONS_MAX = 10

Describe = Callable[[str, str], "DestinationTable | None"]
"""Returns the destination's current description of a table (owner, name); None: it does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashedKey:
    """A unique key of the destination table, in terms of the LCRs' columns.

    Args:
        columns: positions in the source version.
        equalities: canonical form per column.
        seed: hash of the table's name and the columns' numbers. A renamed column keeps its number, so the hash still
            finds older entries of the error queue.
        is_identity: NULLs count as values (the key that finds rows); False: a key with a NULL is never equal.
    """

    columns: tuple[int, ...]
    equalities: tuple[Equality, ...]
    seed: int
    is_identity: bool

    @property
    def form(self) -> int:
        """31 bits that distinguish hashes of this key from those under another table name or other canonical forms."""
        return hash_text(f"{self.seed} {' '.join(str(int(each)) for each in self.equalities)}") & 0x7FFF_FFFF


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """A source version and the destination table it is applied to.

    Args:
        version: the source's description.
        table: the destination's description.
        conflicts: what is compared, and what happens on a conflict.
        relations: what makes its rows depend on rows of other tables.
        handlers: users' handlers, of all tables.
        unfit: why the table does not fit, where its rows are errors (`column_mismatch: error`); `table` is then a
            made-up substitute.
    """

    version: TableVersion
    table: DestinationTable
    conflicts: TableConflicts = NOTHING_SET
    relations: Relations = NO_RELATIONS
    handlers: HandlerRules = NO_HANDLERS
    unfit: str = ""

    @cached_property
    def taking_touch(self) -> int:
        """Hash that orders rows that may take over key values that are not in the log; 0: no row can.

        It is the same for all versions of a table, whatever their replica identity. Rows of a version with all values
        in the log depend on rows of a version that lacks some.
        """
        may_lack = len(self.hashed_keys) > 1 and any(len(key.columns) > 1 for key in self.hashed_keys)
        return _order_touch(self.version.owner, self.version.name) if may_lack else 0

    def order_touches(self, command: Command) -> tuple[tuple[int, bool], ...]:
        """Return what orders rows of a command besides their keys: hashes like `touch`, and whether use is exclusive.

        A handler's SQL can touch anything. So handled rows of all tables are applied one after another, and in order
        with the rows of their own table and of the tables that the handler declares.
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
        """The destination column for each source column."""
        by_name = {column.name: column for column in self.table.columns}
        return tuple(by_name[column.name] for column in self.version.columns)

    @cached_property
    def key(self) -> tuple[int, ...]:
        """The destination's best key whose columns the LCRs all carry, as positions in the version; empty: no such key.

        A substitute key takes precedence. The LCRs carry all of it, or else the table does not fit. A key with a
        column that the destination computes finds no row: the LCR may have another value for it.
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
        """Return a destination key as positions in the version; empty if the LCRs lack a column of it."""
        names = [self.table.columns[place].name for place in key]
        return tuple(self._places[name] for name in names) if all(name in self._places for name in names) else ()

    def _is_mixed(self, key: tuple[int, ...]) -> bool:
        """Return whether the LCRs do not show which rows collide in a key.

        They carry only some of its columns, or the destination computes one, possibly with another value than the
        LCR's. A trigger may likewise set a column that the LCRs lack.
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
        """Whether rows are found by all their values, so duplicates are possible."""
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
        """Return positions in the version whose old values are compared if the LCRs carry them.

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
        """Form hashes of the table, of the columns that find its rows, and of the tables that it refers to.

        Row hashes are comparable only while these are the same.
        """
        found_by = form_of_match(
            self.version.owner, self.version.name, (self._targets[place].number for place in self.match)
        )
        return tuple(dict.fromkeys((*forms_of(self.table), found_by, *self.relations.forms)))

    @cached_property
    def hashed_keys(self) -> tuple[HashedKey, ...]:
        """Every unique key whose columns the LCRs all carry; the key that finds rows comes first."""
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
        """The key under which the times of rows are noted; None: its values do not show which keys are equal."""
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
        """Whether values do not show all dependencies, so that transactions on the table run serially."""
        return (
            self.table.serialise
            or self.is_keyless
            or not self.hashed_keys
            or any(self._is_mixed(key) for key in self.table.unique_keys)
            or any(Equality.NONE in key.equalities for key in self.hashed_keys)
        )

    @cached_property
    def has_free_inserts(self) -> bool:
        """Whether INSERTs of a serialised table do not depend on each other.

        They do not if the destination can never refuse a row because of another one: no unique key contains a column of
        the LCRs. An UPDATE, DELETE or TRUNCATE may reach any row, so it uses the table exclusively.

        INSERTs keep their order for other reasons: `DestinationTable.ordered` (an exclusion constraint, a unique index
        over an expression or some of the rows, a trigger that fires for applied changes), a key that the file sets, or
        conflict handlers. So they do with a DML or error handler of INSERTs: its SQL may read or change earlier rows of
        the table.
        """
        table, insert = (self.version.owner, self.version.name), Command.INSERT.name.lower()
        is_refused = any(self._is_mixed(key) or self._arriving(key) for key in self.table.unique_keys)
        is_handled = bool(
            self.conflicts.handlers or self.handlers.dml_of(*table, insert) or self.handlers.error_of(*table, insert)
        )
        return not (is_refused or is_handled or self.table.ordered or self.table.is_substitute)


_EVERY_HANDLER = ("", "")  # no table: a hash that every handled row uses exclusively


def _order_touch(owner: str, name: str) -> int:
    """Return a hash like the table's `touch` that only orders transactions."""
    return touch_of(f"order\0{owner}\0{name}")


def _new_names(old: TableVersion, new: TableVersion) -> dict[str, str] | None:
    """Map a version's column names to those of a newer one, without dropped columns; None: it cannot be determined.

    A log describes columns in a fixed order: new columns follow at the end, dropped ones leave a gap. So a column was
    renamed if its name is gone (or belongs to another column now) and a new name of the same type is in its place.
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
    """A version under the column names of a newer version.

    Args:
        version: the version with the new names.
        newer: the version that introduced these names.
        is_ambiguous: an old name belongs to another column in `newer`, so a table like `newer` fits both.
    """

    version: TableVersion
    newer: TableVersion
    is_ambiguous: bool


def _renamed(version: TableVersion, newer: TableVersion, names: Mapping[str, str]) -> Renamed | None:
    """Return the version with new names.

    None: it has these names already, or another column has a dropped column's name.
    """
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
    """The versions of each table in order of arrival; kept across restarts of the reader, lost with the process.

    The log describes partitions one by one, with the name of their table. A rename affects all of them, but the order
    of their columns may differ. So one partition shows a rename for another only if a single column was renamed.
    """

    def __init__(self) -> None:
        self._seen: dict[int, dict[int, TableVersion]] = {}
        # For all partitions of a table together, by its number; by name if batches of an earlier format lack the
        # number.
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
        """Yield the version under the names of each newer one, starting with its own newest."""
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
    """Return what identifies a table: its number, because two tables can have one name behind transformations."""
    return int(table.root_number) or (table.owner, table.name)


def _remember(seen: dict[_Key, TableVersion], key: _Key, table: TableVersion) -> None:
    seen[key] = table
    if len(seen) > _VERSIONS_MAX:
        del seen[next(iter(seen))]


def _after(seen: Mapping[_Key, TableVersion], key: _Key) -> Iterable[TableVersion]:
    """Return the versions that follow a version; none if it is unknown or forgotten."""
    keys = list(seen)
    return [seen[later] for later in keys[keys.index(key) + 1 :]] if key in seen else []


def _like(version: TableVersion) -> DestinationTable:
    """Return a substitute for a table that does not fit; its rows have no keys, so all of them keep their order."""
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
        describe: a `Describe`; must return the current state.
        missing_alter: returns the statements that are needed before rows of a version can be written; empty: it fits.
        conflicts: of the apply process; not needed by a caller that writes nothing.
        dependencies: virtual dependency definitions of the apply process.
        handlers: of the apply process.
        settings: of the apply process: what happens to rows that do not fit.
    """

    def __init__(  # the settings of an apply process for its tables, one parameter for each kind
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
        """Return fits for hashing rows of an apply process, with everything that makes one row depend on another."""
        return cls(
            describe,
            missing_alter,
            dependencies=config.dependencies,
            handlers=config.handlers,
            settings=config.destination.tables,
        )

    @property
    def missing_tables(self) -> tuple[str, ...]:
        """Tables that virtual dependency definitions name, but that were missing when a version was last first seen.

        A table renamed at both sites stays replicated under its new name. Only this shows that its rows are no longer
        ordered against others.
        """
        return self._missing

    def fit(self, version: TableVersion) -> TableFit:
        """Return the fit of a version.

        Raises:
            UnfitTableError: the destination table does not fit; the next call checks again.
        """
        # The sender chooses the number, so the name counts too: under another name it is another table.
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
        """Return the table as it is now, if it fits.

        Raises:
            UnfitTableError: it does not fit.
        """
        # The order matters: describing reads the table again, and a session's check uses the result.
        table = self._describe(version.owner, version.name)
        for _ in range(_DESCRIPTIONS_MAX):
            hint = self._missing_alter(version)
            if table is None or hint:
                break
            # Other checks read the catalog themselves. An ALTER in between would leave a description that no check has
            # covered.
            described, table = table, self._describe(version.owner, version.name)
            if table == described:
                return described
        else:
            hint = "the table keeps being altered"
        raise UnfitTableError(
            f"the destination has no table {version.qualified_name}: {hint}"
            if table is None
            else f"table {version.qualified_name} at the destination does not fit the LCRs: {hint}",
            hint=hint,
            table=version.qualified_name,
        )

    def fit_or_error(self, version: TableVersion) -> TableFit:
        """Return the fit of a version; for rows that do not fit and count as errors (`are_errors`), a substitute.

        The apply process refuses such rows one by one. The substitute is not kept: the table may be altered at any
        time.

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
