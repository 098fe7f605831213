"""Labels of enumerated types that were renamed at a source, and the statements that rename them at a destination.

Names identify nothing: when labels a and b are now called b and c, neither kept its name, and b is another label. A
label is identified by its number, which survives a rename (`headrace.databases.ports.row_marks.MarkedLabel`). The
destination's label with a number is the one at its position. It has the earlier name, or the current one if an operator
has renamed it already.

    earlier a, b    now b, c    here a, b    ->    b to c, a to b
    earlier a, b    now b, c    here a, c    ->    a to b
    earlier a, b    now b, a    here a, b    ->    a to b~, b to a, b~ to b
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["RenamedLabels", "renamed_labels"]

_SPARE = "~"  # suffix of a label's temporary name while two labels swap names
_LABEL_BYTES_MAX = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedLabels:
    """Renames to make at a destination.

    Args:
        renames: old and new name of each, in an order in which no new name is taken.
        labels: the destination's labels afterwards, in their order.
    """

    renames: tuple[tuple[str, str], ...]
    labels: tuple[str, ...]


def renamed_labels(earlier: Mapping[str, str], now: Mapping[str, str], here: Sequence[str]) -> RenamedLabels | None:
    """Find the renames to make at a destination.

    Args:
        earlier: names of the source's labels when both sides had the same, by number.
        now: names of the source's labels now, by number, in their order.
        here: names of the destination's labels, in their order.

    Returns:
        None: unknown or impossible: a label has been added under a new name.
    """
    current = _by_place(earlier, now, here)
    if current is None:
        return None
    waiting = {name: now[number] for number, name in current.items() if name != now[number]}
    labels = list(here)
    renames: list[tuple[str, str]] = []

    def rename(old: str, new: str) -> None:
        renames.append((old, new))
        labels[labels.index(old)] = new

    while waiting:
        old = next((name for name, new in waiting.items() if new not in labels), None)
        if old is not None:
            rename(old, waiting.pop(old))
            continue
        old, new = next(iter(waiting.items()))
        spare = _spare(new)
        if new not in waiting or spare in labels:
            return None
        rename(old, spare)
        waiting[spare] = waiting.pop(old)
    return RenamedLabels(renames=tuple(renames), labels=tuple(labels))


def _by_place(earlier: Mapping[str, str], now: Mapping[str, str], here: Sequence[str]) -> dict[str, str] | None:
    """Return the destination's name of each label that had a name earlier, by number; None: unknown."""
    names = {number: {name, _spare(name), earlier.get(number, name)} for number, name in now.items()}
    known = frozenset().union(*names.values())
    labels = [label for label in here if label in known]  # others are the destination's own
    found: dict[str, str] = {}
    taken = 0
    for number in now:
        if taken < len(labels) and labels[taken] in names[number]:
            if number in earlier:
                found[number] = labels[taken]
            taken += 1
        elif number in earlier:  # a label that is new at the source may not be here yet
            return _by_name(earlier, now, here)
    return found if taken == len(labels) else _by_name(earlier, now, here)


def _by_name(earlier: Mapping[str, str], now: Mapping[str, str], here: Sequence[str]) -> dict[str, str] | None:
    """Like `_by_place`, where the destination lacks labels or orders them differently."""
    found = {
        number: name
        for number, new in now.items()
        if number in earlier and (name := earlier[number] if earlier[number] in here else new) in here
    }
    return found if len(set(found.values())) == len(found) else None


def _spare(name: str) -> str:
    cut = name.encode()[: _LABEL_BYTES_MAX - len(_SPARE)]
    return cut.decode(errors="ignore") + _SPARE
