"""The elements of the proof: hops from the redo of one site into another's, and the places and names of arrivals.

A set of tables is encoded by their names at the origin of a change. `Called` records their present names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from topology.routing.change_classes import Naming
from topology.routing.ways import Way
from topology.spec import ApplySpec

__all__ = ["OWN", "Called", "Hop", "Place", "Spread", "by_names", "is_last", "together"]

Place = tuple[str, int]
"""Changes in the redo of a site with one tag: the site, and the position of the tag in `ChangeClasses.tags`."""

Called = Mapping[int, int]
"""Tables by their present name: `OWN`, their own name, or the position of a name in `ChangeClasses.tables`."""

OWN = -1


@dataclass(frozen=True, slots=True, eq=False)
class Hop:
    """A way to an apply process: from the redo of its source into the redo of its site.

    Args:
        way: of `topology.routing.ways`.
        carried: the tables whose changes arrive, by the position of the changes' tag at the source.
        place: position of the tag that the apply process gives them.
        decided_by_rows: those of `carried` of which conditions pass some changes and not others, likewise by tag.
        names: names of tables at its end, as in `ChangeClasses`.
        renamed: the tables that have another name there, as a set.
    """

    way: Way
    carried: tuple[int, ...]
    place: int
    decided_by_rows: tuple[int, ...]
    names: Naming = field(default_factory=dict)
    renamed: int = 0

    def carries(self, table: int, tag: int) -> bool:
        """Return whether a table's changes arrive.

        Args:
            table: position of its name at the source in `ChangeClasses.tables`.
            tag: position of their tag there.
        """
        return bool(self.carried[tag] >> table & 1)

    def over(self, called: Called, tag: int) -> dict[int, int]:
        """Return the tables that arrive, by their names at the end.

        Args:
            called: tables by their names at the source.
            tag: position of their tag there.
        """
        found: dict[int, int] = {}
        for name, tables in called.items():
            if name == OWN:
                coming = self.carried[tag] & tables
                parts = [
                    (OWN, coming & ~self.renamed),
                    *((becomes, coming & 1 << table) for table, becomes in self.names.items()),
                ]
            else:
                becomes = self.names.get(name, name)
                coming = tables if self.carries(name, tag) else 0
                parts = [(OWN, coming & 1 << becomes), (becomes, coming & ~(1 << becomes))]
            for key, part in parts:
                if part:
                    found[key] = found.get(key, 0) | part
        return found

    @property
    def apply(self) -> ApplySpec:
        """The apply process at its end."""
        return self.way.apply

    @property
    def source(self) -> str:
        """The site it begins at."""
        return self.way.apply.source

    @property
    def site(self) -> str:
        """The site it ends at."""
        return self.way.apply.site


@dataclass(slots=True)
class Spread:
    """The arrivals of changes made at one place: tables, by the place of arrival.

    Args:
        once: arriving at least once, by their names there.
        twice: arriving at least twice under one name, by that name.
        endless: arriving again and again, under any name.
        hops: most apply processes in a row until a change is new nowhere.
    """

    once: dict[Place, dict[int, int]] = field(default_factory=dict)
    twice: dict[Place, dict[int, int]] = field(default_factory=dict)
    endless: dict[Place, int] = field(default_factory=dict)
    hops: int = 0

    def add(self, place: Place, name: int, tables: int) -> tuple[int, int]:
        """Record arrivals.

        Args:
            place: where they are.
            name: name of the tables there: `OWN`, or a position in `ChangeClasses.tables`.
            tables: whose changes arrive.

        Returns:
            Those whose changes arrive for the first time, and for the second time.
        """
        known, known_twice = self.once.setdefault(place, {}), self.twice.setdefault(place, {})
        once, twice = known.get(name, 0), known_twice.get(name, 0)
        again = tables & once & ~twice
        known[name], known_twice[name] = once | tables, twice | again
        return tables & ~once, again

    @property
    def as_themselves(self) -> dict[Place, int]:
        """The tables whose changes arrive under their own names."""
        return {place: called[OWN] for place, called in self.once.items() if OWN in called}


def together(called: Called) -> int:
    """Return tables as one set, under any name."""
    found = 0
    for tables in called.values():
        found |= tables
    return found


def by_names(called: Called) -> int:
    """Return tables as a set of their present names."""
    found = called.get(OWN, 0)
    for name, tables in called.items():
        found |= 1 << name if name != OWN and tables else 0
    return found


def is_last(last: Hop, name: int, hop: Hop, called: int) -> bool:
    """Return whether a path may end with this hop: it is `last`, and the table has this name behind it.

    Args:
        last: the wanted last hop of a path.
        name: the table's name behind it, as a number.
        hop: of a path.
        called: the table's name behind `hop`, as a number.
    """
    return hop is last and called == name
