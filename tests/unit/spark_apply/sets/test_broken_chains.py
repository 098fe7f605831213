"""Changes of one row in one group with a missing change between them: the group must end as one-by-one application does
and hide no difference.
"""

from __future__ import annotations

import pytest

from headrace.rules.conflict_handlers import UncomparedColumns
from tests.support.apply.handlers import Handled, row, rules_of
from tests.support.histories.conflicts import Lcr
from tests.support.session.noted import noted

FIRST, SECOND, THIRD = row(3, "one"), row(3, "two"), row(3, "three")
MISSING = {
    "insert, (update), delete": ([Lcr(new=FIRST)], [Lcr(old=SECOND)], "delete_differs"),
    "insert, (update), update": ([Lcr(new=FIRST)], [Lcr(old=SECOND, new=THIRD)], "update_differs"),
    "update, (update), update": (
        [Lcr(old=row(1), new=row(1, "one"))],
        [Lcr(old=row(1, "two"), new=row(1, "three"))],
        "update_differs",
    ),
    "update, (update), delete": ([Lcr(old=row(1), new=row(1, "one"))], [Lcr(old=row(1, "two"))], "delete_differs"),
    "delete, insert, (update), update": (
        [Lcr(old=row(1)), Lcr(new=row(1, "one"))],
        [Lcr(old=row(1, "two"), new=row(1, "three"))],
        "update_differs",
    ),
}


@pytest.mark.parametrize("name", MISSING)
@pytest.mark.parametrize("together", [True, False])
def test_change_in_a_broken_chain_is_the_same_conflict_as_alone(name: str, together: bool) -> None:
    first, last, kind = MISSING[name]
    at = Handled(rules_of(), rows=[row(1)])
    found = [[("c", lcr)] for lcr in [*first, *last]]
    for each in [found] if together else [[one] for one in found]:
        at.apply(*each)
    assert [error.conflict_type for error in at.errors()] == [kind]
    assert "one" in at.values().values()


def test_uncompared_column_breaks_no_chain() -> None:
    at = Handled(rules_of(), rows=[row(1)])
    at.settings = at.settings.__class__(
        apply=at.settings.apply,
        source=at.settings.source,
        site="b",
        rules=at.settings.rules.__class__(uncompared=(UncomparedColumns(owner="public", name="c", columns=("a",)),)),
    )
    at.server = at.new_server()
    at.apply([("c", Lcr(old=row(1), new=row(1, "one")))], [("c", Lcr(old=row(1, "two"), new=row(1, "three")))])
    assert (at.values(), at.errors()) == ({1: "three"}, ())


def test_unbroken_changes_of_a_row_are_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.databases.memory.destination import MemorySession

    written: list[int] = []
    write = MemorySession.write
    monkeypatch.setattr(
        MemorySession,
        "write",
        lambda self, writes: (noted(written, sum(each.row_count for each in writes)), write(self, writes))[1],
    )
    at = Handled(rules_of(), rows=[row(1)])
    texts = [str(number) for number in range(20)]
    at.apply(
        *[
            [("c", Lcr(old=row(1, before), new=row(1, after)))]
            for before, after in zip(["a", *texts], texts, strict=False)
        ]
    )
    assert (at.values(), sum(written)) == ({1: "19"}, 1)
