"""Labels of enumerated types that were renamed at the source after a table's mark was recorded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.databases.renamed_labels import RenamedLabels, renamed_labels
from headrace.lcr.table_name import TableName, literal, quoted_name
from headrace.lcr.type_name import type_parts

if TYPE_CHECKING:
    from headrace.databases.ports import EnumLabels, InstantiationRecords, RowMark

__all__ = ["Relabelled", "RelabelledTypes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relabelled:
    """What to do at the destination about the labels of a table's types.

    Args:
        statements: statements that rename them, in an order that works; none: the types have the source's names
            already.
        has_both: a type has labels with both names: no statement helps.
        said_of: another table whose finding has the same statements.
    """

    statements: tuple[str, ...] = ()
    has_both: bool = False
    said_of: TableName | None = None

    @property
    def first(self) -> str:
        """The step before rows can be equal; empty: not needed."""
        if self.said_of is not None:
            return f"rename them at the destination as shown for {self.said_of}"
        return f"{'; '.join(self.statements)}; at the destination" if self.statements else ""

    def fix(self, *, copy: str, verify: str) -> str:
        """Return what an operator must do if nothing else changed.

        Args:
            copy: how the table is brought up to date.
            verify: the command that compares it.
        """
        first = f"{self.first}, then " if self.first else ""
        if self.has_both:
            return f"the destination has labels with both names, and rows with either: {first}{copy}"
        return f"{first or 'they are renamed at the destination, too: '}`{verify}`"


@dataclass(frozen=True, slots=True)
class RelabelledTypes:
    """The enumerated types in one look; queries the destination for those that were renamed."""

    destination: InstantiationRecords
    _said: dict[tuple[str, ...], TableName] = field(default_factory=dict)

    def found(self, was: RowMark, now: RowMark, source: TableName, here: TableName) -> Relabelled | None:
        """Return what to do for a table; None: no label was renamed.

        Args:
            was: the recorded mark.
            now: the current mark.
            source: the table's name at the source.
            here: its name at the destination.

        Raises:
            DatabaseUnavailable: the destination does not answer.
        """
        changed = [number for number, each in now.labels.items() if was.labels.get(number, each).label != each.label]
        if not changed:
            return None
        types = dict.fromkeys(now.labels[number].type_name for number in changed)
        enums = self.destination.enum_labels(here)
        found = [_renamed(was, now, type_name, enums) for type_name in types]
        statements = tuple(statement for each, owner in found if each for statement in _statements(each, owner))
        said_of = self._said.setdefault(statements, source) if statements else source
        return Relabelled(
            statements=statements,
            has_both=any(each is None for each, _ in found),
            said_of=None if said_of == source else said_of,
        )


def _renamed(
    was: RowMark, now: RowMark, type_name: str, enums: Sequence[EnumLabels]
) -> tuple[RenamedLabels | None, TableName]:
    """Return the renamed labels of one type, and the type's name here."""
    labels = {number: each.label for number, each in now.labels.items() if each.type_name == type_name}
    earlier = {number: was.labels[number].label for number in labels if number in was.labels}
    owner, name = type_parts(type_name)
    alike = [each for each in enums if each.name == name]  # it may be in another schema here
    here = next((each for each in alike if each.owner == owner), alike[0] if alike else None)
    if here is None:
        return renamed_labels(earlier, labels, list(earlier.values())), TableName(owner, name)
    return renamed_labels(earlier, labels, here.labels), TableName(here.owner, name)


def _statements(found: RenamedLabels, enum: TableName) -> Iterator[str]:
    for old, new in found.renames:
        yield f"ALTER TYPE {quoted_name(enum)} RENAME VALUE {literal(old)} TO {literal(new)}"
