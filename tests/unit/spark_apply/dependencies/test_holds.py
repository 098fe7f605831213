"""The error queue's index of dependencies agrees with its definition, for a queue of any length."""

from __future__ import annotations

import random
import time
import tracemalloc

import numpy as np
import pytest

from spark_apply.dependencies.hashes import EVERYTHING, KeyHashes, is_table_use, stored_hashes
from spark_apply.dependencies.holds import ErrorHolds, _Unblocked, checked_hashes
from spark_apply.keys.equality import FORM_BITS
from tests.support.session.seeds import seeds

TABLES = [(number << 24) | 1 for number in range(5, 8)]
LENGTH = 5_000


def drawn(choice: random.Random) -> np.ndarray:
    """Hashes of a transaction: rows of some tables, their (exclusive) use, their forms, and sometimes everything."""
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
        forms = [
            {int(each) for each in hashes if int(each) & ~FORM_BITS == table & ~FORM_BITS and int(each) & 3 == 1}
            for hashes in (earlier, later)
        ]
        if table in forms[0] and table in forms[1] and forms[0] - forms[1]:
            return True
    return False


def is_behind(earlier: np.ndarray, later: np.ndarray) -> bool:
    everything = EVERYTHING in earlier or EVERYTHING in later
    return everything or bool(np.isin(checked_hashes(later), earlier).any()) or has_other_form(earlier, later)


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("error holds", test=6, soak=200))
def test_each_error_waits_for_the_last_earlier_error_it_depends_on(seed: int) -> None:
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
            expected = max(
                (other for other in there if other < each and is_behind(there[other], there[each])), default=0
            )
            assert holds.blocker(each) == expected
        together = sorted(choice.sample(list(there), min(choice.randint(2, 12), len(there))))
        blocked: dict[int, int] = {}
        for each in together:
            others = [other for other in there if other < each and (other not in together or blocked[other])]
            blocked[each] = max((other for other in others if is_behind(there[other], there[each])), default=0)
        assert holds.blockers(together) == blocked
        assert ([number in holds for number in there], len(holds)) == ([True] * len(there), len(there))
        hashes = drawn(choice)
        if EVERYTHING not in hashes:
            is_row, is_form = (
                ~is_table_use(hashes),
                np.isin(hashes & np.uint64(~FORM_BITS & (1 << 64) - 1) | np.uint64(1), TABLES)
                & ~np.isin(hashes, TABLES),
            )
            forms = KeyHashes(hashes=hashes[is_form], first=np.array([0, int(is_form.sum())], np.int64))
            rows = KeyHashes(hashes=hashes[is_row], first=np.array([0, int(is_row.sum())], np.int64), forms=forms)
            behind = [
                other
                for other, theirs in there.items()
                if EVERYTHING in theirs or np.isin(rows.hashes, theirs).any() or has_other_form(theirs, hashes)
            ]
            assert [held.depends_on for held in holds.held(rows)] == ([max(behind)] if behind else [])


def test_long_error_queue_takes_time_linear_in_its_length() -> None:
    """Each execution once checked all other error transactions: ten thousand blocked the apply process for hours."""

    def processor_time(length: int) -> float:
        choice = random.Random(1)
        holds = ErrorHolds((number, drawn(choice)) for number in range(1, length + 1))
        began = time.process_time()
        assert len(holds.blockers(range(1, length + 1))) == length
        for number in range(1, 201):
            holds.blocker(number)
            holds.blocker(length + 1 - number)
            holds.remove(number)
            holds.add(length + number, drawn(choice))
            assert number not in holds
        return time.process_time() - began

    short = processor_time(LENGTH // 8)
    assert processor_time(LENGTH) < 24 * short  # usually 6 times as much; quadratic growth would be 64 times


def some(generator: np.random.Generator, count: int) -> np.ndarray:
    """Hashes of `count` rows that are in no other error transaction."""
    return np.unique(generator.integers(1, 1 << 60, count, dtype=np.uint64) << np.uint64(2))


def bytes_taken(holds: ErrorHolds, numbers: range) -> int:
    tracemalloc.start()
    try:
        assert set(holds.blockers(numbers).values()) == {0}
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_choosing_the_next_error_transactions_copies_no_other_hashes() -> None:
    """After each failure one error is chosen alone: copying four million hashes each time blocked the coordinator."""
    generator = np.random.default_rng(1)
    holds = ErrorHolds((number, some(generator, 4_000 if number <= 50 else 3)) for number in range(1, 201))
    assert holds.blocker(1) == 0  # sorts the added hashes now
    size = 50 * 4_000 * 16
    assert bytes_taken(holds, range(150, 151)) < size / 50
    assert bytes_taken(holds, range(1, 2)) < size / 5
    assert bytes_taken(holds, range(100, 200)) < size / 2
    assert bytes_taken(holds, range(1, 51)) < size


def in_forms(count: int) -> ErrorHolds:
    """Many error transactions: half of them wait for others, and two have a table in `count` forms."""
    generator = np.random.default_rng(1)
    table = TABLES[0] & ~FORM_BITS | 1
    forms = [table & ~FORM_BITS | 4 * (number + 1) | 1 for number in range(count)]
    blocking = some(generator, 300)
    errors = [(number + 1, blocking[number : number + 1]) for number in range(256)]
    for number in range(512):
        blocked = blocking[number // 2 : number // 2 + 1] if number % 2 else np.empty(0, np.uint64)
        mine = np.array([table, *forms] if number in {0, 2} else [], np.uint64)
        errors.append((300 + number, np.concatenate([some(generator, 2), blocked, mine])))
    return ErrorHolds(errors)


def seconds_to_choose(holds: ErrorHolds) -> float:
    """Return the processor time, the minimum of three runs."""
    found = []
    for _ in range(3):
        began = time.process_time()
        blockers = holds.blockers(range(300, 812))
        found.append(time.process_time() - began)
        assert sum(by > 0 for by in blockers.values()) == 256
    return min(found)


def test_choice_takes_no_longer_with_two_forms_of_a_table_in_the_queue() -> None:
    """Adding a primary key leaves two forms. Comparing every pair of forms took a hundred times as long."""
    assert seconds_to_choose(in_forms(2)) < 10 * seconds_to_choose(in_forms(1))


def test_unchosen_uses_of_a_table_block_its_exclusive_use() -> None:
    use, count = TABLES[0] << 8 | 1, 400
    holds = ErrorHolds(
        (number, stored_hashes(np.array([use | 2 if number % 20 == 0 else use, number << 32], np.uint64)))
        for number in range(1, count + 1)
    )
    assert holds.blockers(range(1, count + 1)) == dict.fromkeys(range(1, count + 1), 0)
    # The first exclusive use waits for a use that is not chosen. So each use waits for the last exclusive use before
    # it, and each exclusive use for the use before it.
    expected = {number: number - number % 20 if number % 20 else number - 1 for number in range(100, count + 1)}
    assert holds.blockers(range(100, count + 1)) == expected


def test_shared_hashes_are_visited_once_for_a_joint_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    count, looked_at = 400, list[int]()
    are_free = _Unblocked._are_free

    def counted(unblocked: _Unblocked, places: np.ndarray) -> np.ndarray:
        looked_at.append(places.shape[0])
        return are_free(unblocked, places)

    monkeypatch.setattr(_Unblocked, "_are_free", counted)
    use = TABLES[0] << 8 | 1
    holds = ErrorHolds(
        (number, stored_hashes(np.array([8, use | 2 if number % 20 == 0 else use], np.uint64)))
        for number in range(1, count + 1)
    )
    assert holds.blockers(range(1, count + 1)) == dict.fromkeys(range(1, count + 1), 0)
    assert count < sum(looked_at) < 10 * count
    looked_at.clear()
    assert holds.blocker(count) == count - 1
    assert sum(looked_at) < 10
