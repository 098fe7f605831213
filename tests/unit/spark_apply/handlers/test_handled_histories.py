"""Handlers that change LCRs next to plain rows of the same keys: a group leaves the rows and errors of one-by-one
application.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.rules.user_code.handlers import DmlHandler
from spark_apply.server.set_groups import SetsWork
from spark_apply.sets import table_rows
from tests.support.apply.handlers import Handled, row, rules_of
from tests.support.histories.conflicts import Lcr, Shown
from tests.support.session.noted import noted
from tests.support.session.seeds import scaled

Transaction = list[tuple[str, Lcr]]
EXECUTE = "    lcr.execute(conflict_resolution=False)\n"
MASK = "    lcr.set_value('new', 'b', '***')\n"


def rules(*texts: tuple[str, str], table: str = "c"):
    """One handler per operation: (operation, body)."""
    code = "".join(f"def on_{operation}(lcr, session):\n{body}\n" for operation, body in texts)
    made = rules_of(code, dml=[f"on_{operation}" for operation, _ in texts]).dml
    return rules_of(
        code,
        dml=[
            DmlHandler(
                owner="public", name=table, operations=(operation,), function=each.function, tables=(("public", "d"),)
            )
            for (operation, _), each in zip(texts, made, strict=True)
        ],
    )


def update(old: Shown, new: Shown, table: str = "c") -> tuple[str, Lcr]:
    return table, Lcr(old=old, new=new)


def with_(row_: Shown, **values: object) -> Shown:
    names = ("id", "a", "b", "t", "n", "u")
    return tuple(values.get(name, value) for name, value in zip(names, row_, strict=True))  # type: ignore[misc]


def test_plain_update_of_other_columns_keeps_a_value_set_by_a_handler() -> None:
    """The handler masks b of inserted rows. The later UPDATE has the source's b, unchanged, and sets only a."""
    at = Handled(rules(("insert", MASK + EXECUTE)))
    at.apply([("c", Lcr(new=row(1))), update(row(1), with_(row(1), a="later"))])
    assert (at.rows(), at.errors()) == ([with_(row(1), a="later", b="***")], ())


def test_plain_change_with_a_differing_old_value_conflicts_after_a_handler() -> None:
    at = Handled(rules(("insert", MASK + EXECUTE)))
    at.apply(
        [("c", Lcr(new=row(1)))],
        [update(row(1), with_(row(1), b="c"))],
        [("c", Lcr(new=row(2))), ("c", Lcr(old=row(2)))],
    )
    assert [error.conflict_type for error in at.errors()] == ["update_differs", "delete_differs"]
    assert at.rows() == [with_(row(1), b="***")]


def test_plain_update_in_a_set_without_old_values_still_compares() -> None:
    """An INSERT that becomes an UPDATE has no old values; its neighbour in the set has some."""
    rows = [with_(row(1), b="of this site"), row(2), with_(row(3), a="other")]
    at = Handled(rules(("insert", "    lcr.command_type = 'UPDATE'\n" + EXECUTE)), rows=rows)
    at.apply([("c", Lcr(new=row(2, "new"))), update(row(1), with_(row(1), a="later"))])
    assert (at.rows(), at.errors()) == ([with_(row(1), a="later", b="of this site"), row(2, "new"), rows[2]], ())
    at.apply([("c", Lcr(new=row(2, "newer"))), update(row(3), with_(row(3), a="later"))])
    assert [error.conflict_type for error in at.errors()] == ["update_differs"]


def test_rows_with_handler_columns_are_planned_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run of rows with the same columns is a separate piece, made from its own rows without scanning others."""
    at = Handled(
        rules(("insert", "    lcr.delete_column('u', 'new')\n" + EXECUTE)), rows=[row(key) for key in range(100, 150)]
    )
    looked: list[int] = []
    between = table_rows._rows_between
    monkeypatch.setattr(table_rows, "_rows_between", lambda *arguments: (noted(looked, 1), between(*arguments))[1])
    at.apply(
        [
            change
            for key in range(50)
            for change in (("c", Lcr(new=row(key))), update(row(key + 100), with_(row(key + 100), a="later")))
        ]
    )
    assert (len(at.rows()), at.errors()) == (100, ())
    assert len(looked) <= 2 * 100


# --------------------------------------------------------------------------- any history

BODIES = {
    "insert": (
        MASK,
        "    lcr.command_type = 'UPDATE'\n",
        "    lcr.delete_column('u', 'new')\n",
        "    lcr.object_name = 'd'\n",
        "    lcr.set_value('new', 'id', lcr.get_value('new', 'id').decoded ^ 1)\n",
        "    if lcr.get_value('new', 't').decoded % 2:\n        lcr.set_value('new', 'a', 'odd')\n",
    ),
    "update": (
        MASK,
        "    lcr.set_value('old', 'b', '***')\n",
        "    lcr.delete_column('b', 'old')\n",
        "    lcr.delete_column('t')\n",
        "    lcr.object_name = 'd'\n",
        "    lcr.set_value('new', 'id', lcr.get_value('new', 'id').decoded ^ 1)\n",
        "    for kind in ('old', 'new'):\n        lcr.set_value(kind, 'id', lcr.get_value(kind, 'id').decoded ^ 1)\n",
        "    if lcr.get_value('new', 't').decoded % 2:\n        lcr.set_value('new', 'n', 7)\n",
        "    if lcr.get_value('new', 't').decoded % 2:\n        return\n",
    ),
    "delete": (
        "    lcr.delete_column('b', 'old')\n",
        "    lcr.command_type = 'UPDATE'\n    lcr.add_column('new', 'a', 'gone')\n",
        "    return\n",
        "    lcr.set_value('old', 'id', lcr.get_value('old', 'id').decoded ^ 1)\n",
        "    lcr.object_name = 'd'\n",
    ),
}


def history_of(rng: random.Random, rows: dict[str, dict[int, Shown]]) -> list[Transaction]:
    """Return random transactions of a source with these rows."""
    made: list[Transaction] = []
    for _ in range(rng.randrange(1, 5)):
        changes: Transaction = []
        for _ in range(rng.randrange(1, 6)):
            table = rng.choice("cccd")
            there, key = rows[table], rng.randrange(4)
            old = there.get(key)
            new = row(key, rng.choice("xyz"), rng.randrange(10))
            if old is None:
                changes.append((table, Lcr(new=new)))
                there[key] = new
            elif rng.random() < 0.3:
                changes.append((table, Lcr(old=old)))
                del there[key]
            else:
                values = dict(zip(("id", "a", "b", "t", "n", "u"), new, strict=True)) | {"b": rng.choice("bc")}
                new = with_(old, **{name: values[name] for name in rng.sample(("a", "b", "t"), rng.randrange(3))})
                if rng.random() < 0.1 and (free := [each for each in range(4) if each not in there]):
                    del there[key]
                    new = with_(new, id=rng.choice(free))
                changes.append(update(old, new, table))
                there[int(str(new[0]))] = new
        made.append(changes)
    return made


apply_range = SetsWork._apply_range


def one_by_one(work: SetsWork, first: int, last: int) -> bool:
    """Fail every attempt except for transactions that only have to join the error queue."""
    is_held = last - first == 1 and work._behind is not None and int(work._behind[first]) >= 0
    return is_held and apply_range(work, first, last)


def outcome(at: Handled) -> tuple[object, ...]:
    return (
        at.rows("c"),
        at.rows("d"),
        [(error.commit_scn, error.failed_position, error.conflict_type) for error in at.errors()],
    )


def applied(texts: Sequence[tuple[str, str]], found: dict[str, list[Shown]], history: list[Transaction]) -> Handled:
    at = Handled(rules(*texts), rows=found["c"], others=found["d"])
    at.apply(*history)
    return at


@pytest.mark.long
@pytest.mark.seeded
@settings(max_examples=scaled(48, 1500), deadline=None)
@given(st.integers(0, 2**32))
def test_group_equals_one_by_one_application_of_its_transactions(seed: int) -> None:
    rng = random.Random(seed)
    texts = [
        (operation, body + EXECUTE)
        for operation, bodies in BODIES.items()
        if rng.random() < 0.6
        for body in [rng.choice(bodies) if rng.random() < 0.8 else ""]
    ]
    rows = {name: {key: row(key) for key in range(4) if rng.random() < 0.6} for name in "cd"}
    found = {name: list(each.values()) for name, each in rows.items()}
    if rng.random() < 0.3:
        found = {
            name: [with_(each, b="here") if rng.random() < 0.3 else each for each in there]
            for name, there in found.items()
        }
    history = history_of(rng, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SetsWork, "_apply_range", one_by_one)
        expected = outcome(applied(texts, found, history))
    assert outcome(applied(texts, found, history)) == expected
