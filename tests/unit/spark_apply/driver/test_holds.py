"""The error queue's index: what holds what, as its definition says one by one, and with a queue of any length."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from spark_apply.dependencies import EVERYTHING, KeyHashes, is_table_use, stored_hashes
from spark_apply.driver.holds import ErrorHolds, checked_hashes
from spark_apply.equality import FORM_BITS
from tests.support.seeds import seeds

TABLES = [(number << 24) | 1 for number in range(5, 8)]
LENGTH = 5_000


def drawn(choice: random.Random) -> np.ndarray:
    """Hashes of a transaction: rows of some tables, use or exclusive use of these, their forms; now and then everything."""
    if choice.random() < 0.05:
        return np.array([EVERYTHING], np.uint64)
    found = []
    for table in choice.sample(TABLES, choice.randint(1, 2)):
        use = (table * 7) << 8 | 1
        rows = [(table * 1000 + choice.randint(0, 5)) * 4 for _ in range(choice.randint(1, 2))]
        form = table & ~FORM_BITS | choice.choice([4, 4, 4, 8]) | 1
        found += [*rows, use | (2 if choice.random() < 0.1 else 0), form, form & ~FORM_BITS | 1]
    return stored_hashes(np.array(found, np.uint64))


def has_other_form(earlier: np.ndarray, later: np.ndarray) -> bool:
    for table in TABLES:
        forms = [{int(each) for each in hashes if int(each) & ~FORM_BITS == table & ~FORM_BITS and int(each) & 3 == 1} for hashes in (earlier, later)]
        if table in forms[0] and table in forms[1] and forms[0] - forms[1]:
            return True
    return False


def is_behind(earlier: np.ndarray, later: np.ndarray) -> bool:
    everything = EVERYTHING in earlier or EVERYTHING in later
    return everything or bool(np.isin(checked_hashes(later), earlier).any()) or has_other_form(earlier, later)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("error holds", test=6, soak=200))
def test_each_waits_for_the_last_earlier_one_that_it_depends_on_whatever_came_and_went_before(seed: int) -> None:
    choice = random.Random(seed)
    holds, there, number = ErrorHolds(), dict[int, np.ndarray](), 0
    for _ in range(60):
        what = choice.random()
        if what < 0.5 or not there:
            number += choice.randint(1, 3)
            there[number] = drawn(choice)
            holds.add(number, there[number])
        elif what < 0.6:  # it was edited
            edited = choice.choice(list(there))
            more = drawn(choice)
            holds.add(edited, more)
            there[edited] = np.concatenate([there[edited], more])
        elif what < 0.8:
            gone = choice.choice(list(there))
            holds.remove(gone)
            del there[gone]
        for each in choice.sample(list(there), min(3, len(there))):
            expected = max((other for other in there if other < each and is_behind(there[other], there[each])), default=0)
            assert holds.blocker(each) == expected
        together = sorted(choice.sample(list(there), min(choice.randint(2, 12), len(there))))
        blocked: dict[int, int] = {}
        for each in together:
            others = [other for other in there if other < each and (other not in together or blocked[other])]
            blocked[each] = max((other for other in others if is_behind(there[other], there[each])), default=0)
        found = holds.blockers(together)
        assert {each: bool(by) for each, by in found.items()} == {each: bool(by) for each, by in blocked.items()}
        assert all(not by or is_behind(there[by], there[each]) for each, by in found.items())
        assert ([number in holds for number in there], len(holds)) == ([True] * len(there), len(there))
        hashes = drawn(choice)
        if EVERYTHING not in hashes:
            is_row = ~is_table_use(hashes)
            rows = KeyHashes(hashes=hashes[is_row], first=np.array([0, int(is_row.sum())], np.int64))
            last = max((other for other, theirs in there.items() if EVERYTHING in theirs or np.isin(rows.hashes, theirs).any()), default=0)
            assert [held.depends_on for held in holds.held(rows)] == ([last] if last else [])


def test_long_queue_is_executed_and_fills_in_time_that_grows_with_it_and_not_with_its_square() -> None:
    """Each execution asked every other error transaction: ten thousand of them held up the apply process for hours."""
    choice = random.Random(1)
    holds = ErrorHolds((number, drawn(choice)) for number in range(1, LENGTH + 1))
    began = time.monotonic()
    assert len(holds.blockers(range(1, LENGTH + 1))) == LENGTH
    for number in range(1, 201):
        holds.blocker(number)
        holds.blocker(LENGTH + 1 - number)
        holds.remove(number)
        holds.add(LENGTH + number, drawn(choice))
        assert number not in holds
    assert time.monotonic() - began < 15
