"""Which of a type's labels are to be renamed at a destination, and in which order."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from headrace.databases.renamed_labels import renamed_labels
from tests.support.session.seeds import seed_of


def named(names: str, *, first: int = 1) -> dict[str, str]:
    """Labels by number: "a b" has the numbers 1 and 2; "3c" stands for a label with another number."""
    found = {}
    for place, name in enumerate(names.split(), start=first):
        found[name[0] if name[0].isdigit() else str(place)] = name.lstrip("0123456789")
    return found


def renamed(labels: list[str], renames: tuple[tuple[str, str], ...]) -> list[str]:
    """As the server does it, which refuses a name that is taken."""
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
        ("a b", "b c", "b a", [("b", "c"), ("a", "b")]),  # the destination has an order of its own
    ],
)
def test_labels_are_known_by_their_numbers_and_renamed_in_an_order_that_works(
    earlier: str, now: str, here: str, renames: list[tuple[str, str]]
) -> None:
    found = renamed_labels(named(earlier), named(now), here.split())
    assert found is not None
    assert list(found.renames) == renames
    assert renamed(here.split(), found.renames) == list(found.labels)


def test_a_label_that_was_added_under_the_new_name_cannot_be_renamed_any_more() -> None:
    assert renamed_labels(named("a b"), named("a c"), ["a", "b", "c"]) is None


@pytest.mark.seeded
def test_any_renames_are_brought_over_wherever_an_operator_stopped() -> None:
    seed = seed_of("any renames are brought over")
    random = Random(seed)
    names = [f"{letter}{'ü' * 30}" for letter in "abcdefg"]
    for _ in range(300):
        count = random.randint(1, 5)
        earlier = dict(zip(map(str, itertools.count(1)), random.sample(names, count), strict=False))
        now = dict(zip(earlier, random.sample(names, count), strict=True))
        labels = list(earlier.values())
        for _ in range(20):  # what is said is said anew after each statement
            found = renamed_labels(earlier, now, labels)
            assert found is not None, (seed, earlier, now, labels)
            assert list(found.labels) == list(now.values()), (seed, earlier, now, labels)
            if not found.renames:
                break
            labels = renamed(labels, found.renames[:1])
        assert labels == list(now.values()), seed
