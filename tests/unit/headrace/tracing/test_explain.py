"""`headrace explain`: the key, the search of redo in pieces, and the calls to components."""

from __future__ import annotations

import pytest

from headrace.base.errors import ConfigError, LogGone, PropagationError
from headrace.redo.mining.key_search import CHANGES_MAX, FoundChange, SearchedRedo
from headrace.tracing.explain import REDO_WAIT_S, RESTARTS_MAX, Findings, parsed_key, searched


def change(scn: int) -> FoundChange:
    return FoundChange(
        command="UPDATE", transaction_id=1, order_scn=scn - 1, commit_scn=scn, commit_time_us=0, tag=None, tagged_by=""
    )


def piece(first: int, through: int, *changes: int, is_done: bool = False, left_out: int = 0) -> SearchedRedo:
    return SearchedRedo(
        first_scn=first,
        through_scn=through,
        is_done=is_done,
        redo_bytes=1000,
        changes=tuple(change(scn) for scn in changes),
        left_out=left_out,
    )


class Redo:
    """Gives its answers in turn; an exception is raised."""

    def __init__(self, *answers: SearchedRedo | Exception) -> None:
        self.answers, self.asked = list(answers), list[int]()

    def __call__(self, start: int) -> SearchedRedo:
        self.asked.append(start)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("42", (("", "42"),)),
        ("7,1", (("", "7"), ("", "1"))),
        ("id=42", (("id", "42"),)),
        ("order=7,line=1", (("order", "7"), ("line", "1"))),
        ("note=a=b", (("note", "a=b"),)),
    ],
)
def test_key_is_values_or_columns_with_values(text: str, key: tuple[tuple[str, str], ...]) -> None:
    assert parsed_key(text) == key


@pytest.mark.parametrize("text", ["", "id=1,2"])
def test_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no key"):
        parsed_key(text)


def test_pieces_are_requested_in_turn_with_progress() -> None:
    redo, lines = Redo(piece(50, 100, 60), piece(100, 200), piece(200, 300, 250, is_done=True)), list[str]()
    found = searched(redo, lines.append)
    assert redo.asked == [0, 100, 200]
    assert (found.searched, [each.commit_scn for each in found.changes]) == ((50, 300), [60, 250])
    assert len(lines) == 3


def test_only_the_newest_changes_of_all_pieces_are_kept() -> None:
    found = searched(
        Redo(piece(1, 100, *range(1, CHANGES_MAX + 1), left_out=2), piece(100, 200, 150, 160, is_done=True)),
        lambda _: None,
    )
    assert (len(found.changes), found.left_out, found.changes[-1].commit_scn) == (CHANGES_MAX, 4, 160)


def test_search_restarts_a_few_times_when_redo_was_purged_meanwhile() -> None:
    redo = Redo(piece(50, 100, 60), LogGone("gone"), piece(90, 200, 150, is_done=True))
    found = searched(redo, lambda _: None)
    assert redo.asked == [0, 100, 0]
    assert (found.searched, [each.commit_scn for each in found.changes]) == ((90, 200), [150])
    hopeless = Redo(LogGone("gone"))
    assert searched(hopeless, lambda _: None) == Findings(searched=None, problem="gone")
    assert len(hopeless.asked) == RESTARTS_MAX + 1


def test_search_waits_a_while_for_redo_that_was_just_logged() -> None:
    slept: list[float] = []
    redo = Redo(piece(50, 100, is_done=True), piece(100, 100, is_done=True), piece(100, 200, 150, is_done=True))
    found = searched(redo, lambda _: None, through_scn=200, sleep=slept.append)
    assert (found.searched, [each.commit_scn for each in found.changes], len(slept)) == ((50, 200), [150], 2)
    stuck = Redo(piece(50, 100, is_done=True), piece(100, 100, is_done=True))
    assert searched(stuck, lambda _: None, through_scn=200, sleep=slept.append).searched == (50, 100)
    assert sum(slept[2:]) == pytest.approx(REDO_WAIT_S)


def test_unreachable_capture_process_is_reported_as_a_problem() -> None:
    assert searched(Redo(PropagationError("capture:c is dead")), lambda _: None).problem == "capture:c is dead"


def test_piece_without_progress_ends_the_search() -> None:
    redo = Redo(piece(50, 100), piece(100, 100))
    assert searched(redo, lambda _: None).searched == (50, 100)
    assert redo.asked == [0, 100]
