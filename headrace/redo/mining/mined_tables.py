"""The tables and tags that a miner has met: their places in its batches, and the rules' verdicts.

A table keeps its place for the miner's life, because pending rows refer to it. There can be one tag per transaction, so
tags without references are forgotten.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.lcr.batch import TableVersion
from headrace.lcr.tags import Tag
from headrace.redo.mining.names import HIDDEN_OWNERS
from headrace.rules.evaluation import RuleEvaluation

__all__ = ["TAGS_KEPT", "MinedTables"]

TAGS_KEPT = 1 << 10  # far more than a topology has: only users who invent a tag for each transaction have more


class MinedTables:
    """The tables and tags of one miner.

    Args:
        rules: the capture process's rules.

    Attributes:
        versions: one entry per (object, version) met; rows refer to their table by its place here. Grows only.
        tags: one entry per tag met; transactions refer to their tag by its place here, until `forget_tags`.
    """

    def __init__(self, rules: RuleEvaluation) -> None:
        self._rules = rules
        self.versions: list[TableVersion] = []
        self.tags: list[Tag] = []
        self._places: dict[TableVersion, int] = {}
        self._tag_places: dict[Tag, int] = {}
        self._current: dict[int, int] = {}
        self._index: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]] | None = None

    def place(self, version: TableVersion) -> int:
        """Return the place of a version in `versions`."""
        place = self._places.get(version)
        if place is None:
            place = self._places[version] = len(self.versions)
            self.versions.append(version)
        return place

    def use(self, version: TableVersion) -> None:
        """Assign this version to an object's rows from now on."""
        place = self.place(version)
        if self._current.get(version.object_number) != place:
            self._current[version.object_number] = place
            if self._index is not None:
                self._put(version, place)

    def _put(self, version: TableVersion, place: int) -> None:
        """Insert a version into the index of `objects`: thousands may be described one by one."""
        assert self._index is not None
        numbers, places, columns, verdicts = self._index
        at = int(np.searchsorted(numbers, version.object_number))
        is_known = at < numbers.shape[0] and numbers[at] == version.object_number
        rest = at + 1 if is_known else at
        verdict = np.array([self.keeps(version)], np.uint8)
        self._index = (
            np.concatenate([numbers[:at], np.array([version.object_number], np.int64), numbers[rest:]]),
            np.concatenate([places[:at], np.array([place], np.int32), places[rest:]]),
            np.concatenate([columns[:at], np.array([len(version.columns)], np.int64), columns[rest:]]),
            np.concatenate([verdicts[:at], verdict, verdicts[rest:]]),
        )

    def tag_place(self, tag: Tag) -> int:
        """Return the place of a tag in `tags`."""
        place = self._tag_places.get(tag)
        if place is None:
            place = self._tag_places[tag] = len(self.tags)
            self.tags.append(tag)
            self._index = None
        return place

    def forget_tags(self, used: NDArray[np.int64]) -> NDArray[np.int64]:
        """Forget all other tags.

        Args:
            used: places of the tags to keep, ascending.

        Returns:
            int64[tags + 1]: their new places, by the old ones; the last one for NULL (-1).
        """
        places = np.full(len(self.tags) + 1, -1, np.int64)
        places[used] = np.arange(used.shape[0])
        self.tags[:] = [self.tags[place] for place in used.tolist()]
        self._tag_places = {tag: place for place, tag in enumerate(self.tags)}
        self._index = None
        return places

    def keeps(self, version: TableVersion) -> list[bool]:
        """Return the prefiltering verdicts for a version's rows, by the place of their tag, NULL last.

        True (TRUE or MAYBE) keeps the rows, False discards them.
        """
        tags = [*(tag.value for tag in self.tags), None]
        return [False] * len(tags) if version.owner in HIDDEN_OWNERS else self._rules.keeps(version, tags)

    def keeps_any(self, version: TableVersion) -> bool:
        """Return whether prefiltering keeps the version's rows with some tag."""
        return version.owner not in HIDDEN_OWNERS and self._rules.keeps_any(version)

    @property
    def are_transformed(self) -> bool:
        """Whether the rules transform some table."""
        return self._rules.transforms

    def must_know(self, version: TableVersion) -> None:
        """Refuse a version in which a column that a transformation names may have another name.

        Raises:
            TransformationError: its rows could not be transformed.
        """
        if version.owner not in HIDDEN_OWNERS:
            self._rules.must_know(version)

    def objects(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.uint8]]:
        """Return the objects in use, ascending, for `headrace.redo.mining.mining_kernels.classify`.

        Returns:
            Object numbers; the place of each one's version; its number of columns; the verdicts of `keeps`, shape
            (objects, tags + 1).
        """
        if self._index is None:
            numbers = sorted(self._current)
            places = [self._current[number] for number in numbers]
            verdicts = [self.keeps(self.versions[place]) for place in places]
            self._index = (
                np.array(numbers, np.int64),
                np.array(places, np.int32),
                np.array([len(self.versions[place].columns) for place in places], np.int64),
                np.array(verdicts, np.uint8).reshape(len(places), len(self.tags) + 1),
            )
        return self._index
