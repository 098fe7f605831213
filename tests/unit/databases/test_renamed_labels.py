"""Which labels of a type are to be renamed at a destination, and in which order."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from headrace.databases.renamed_labels import renamed_labels
from tests.support.session.seeds import seed_of


def named(names: str, *, first: int = 1) -> dict[str, str]:
    """Labels by number: "a b" has the numbers 1 and 2; "3c" is a label with an explicit number."""
    found = {}
    for place, name in enumerate(names.split(), start=first):
        found[name[0] if name[0].isdigit() else str(place)] = name.lstrip("0123456789")
    return found


def renamed(labels: list[str], renames: tuple[tuple[str, str], ...]) -> list[str]:
    """Rename as the server does: a taken name is refused."""
    for old, new in renames:
        assert old in labels
        assert new not in labels
        labels = [new if label == old else label for label in labels]
    return labels


@pytest.mark.parametrize(
    ("earlier", "now", "here", "renames"),
    [
        ("a b", "a b", "a b", []),
        ("a b", "a c", "a b", [("b", "c")]),
        ("a b", "b c", "a b", [("b", "c"), ("a", "b")]),
        ("a b", "b c", "a c", [("a", "b")]),
        ("a b", "b c", "b c", []),
        ("a b", "b a", "a b", [("a", "b~"), ("b", "a"), ("b~", "b")]),
        ("a b", "b a", "b~ b", [("b", "a"), ("b~", "b")]),
        ("a b", "b a", "b~ a", [("b~", "b")]),
        ("a b", "b a", "b a", []),
        ("a b", "x b 3a", "a b", [("a", "x")]),
        ("a b", "x b 3a", "x b a", []),
        ("a b", "1a 3b 2c", "a b", [("b", "c")]),
        ("a b", "b c", "a own b", [("b", "c"), ("a", "b")]),
        ("a b", "b c", "b a", [("b", "c"), ("a", "b")]),  # the destination has its own order
    ],
)
def test_labels_are_matched_by_number_and_renamed_in_a_possible_order(
    earlier: str, now: str, here: str, renames: list[tuple[str, str]]
) -> None:
    found = renamed_labels(named(earlier), named(now), here.split())
    assert found is not None
    assert list(found.renames) == renames
    assert renamed(here.split(), found.renames) == list(found.labels)


def test_label_cannot_be_renamed_when_its_new_name_was_added() -> None:
    assert renamed_labels(named("a b"), named("a c"), ["a", "b", "c"]) is None


@pytest.mark.seeded
def test_any_renames_complete_wherever_an_operator_stopped() -> None:
    seed = seed_of("any renames are brought over")
    random = Random(seed)
    names = [f"{letter}{'ü' * 30}" for letter in "abcdefg"]
    for _ in range(300):
        count = random.randint(1, 5)
        earlier = dict(zip(map(str, itertools.count(1)), random.sample(names, count), strict=False))
        now = dict(zip(earlier, random.sample(names, count), strict=True))
        labels = list(earlier.values())
        for _ in range(20):  # the renames are computed anew after each statement
            found = renamed_labels(earlier, now, labels)
            assert found is not None, (seed, earlier, now, labels)
            assert list(found.labels) == list(now.values()), (seed, earlier, now, labels)
            if not found.renames:
                break
            labels = renamed(labels, found.renames[:1])
        assert labels == list(now.values()), seed
