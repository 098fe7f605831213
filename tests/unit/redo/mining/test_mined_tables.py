"""The miner's tables in kernel form, added one by one or all together."""

from __future__ import annotations

import random

import numpy as np
import pytest

from headrace.lcr.batch import Column, OldImage, TableVersion
from headrace.lcr.tags import Tag
from headrace.redo.mining.mined_tables import MinedTables
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import Rule, RuleSet
from tests.support.session.seeds import seeds


def version(number: int, columns: int, name: str) -> TableVersion:
    described = tuple(Column(name=f"c{n}", type_name="pg_catalog.text", type_number=25) for n in range(columns))
    return TableVersion(
        object_number=number, version=columns, owner="s", name=name, columns=described, old_image=OldImage.KEY
    )


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("mined tables", test=5, soak=200))
def test_tables_added_one_by_one_equal_tables_added_together(seed: int) -> None:
    rng = random.Random(seed)
    rules = RuleEvaluation(RuleSet(include=(Rule(owner="s", name="a"),)))
    tables = MinedTables(rules)
    used: dict[int, TableVersion] = {}
    for turn in range(200):
        if rng.random() < 0.05:
            tables.tag_place(Tag(value=bytes([turn]), topology="", apply=""))
        used_now = version(rng.randrange(40), rng.randrange(4), rng.choice("ab"))
        used[used_now.object_number] = used_now
        tables.use(used_now)
        numbers, places, columns, verdicts = tables.objects()
        assert numbers.tolist() == sorted(used)
        assert [tables.versions[place] for place in places.tolist()] == [used[number] for number in sorted(used)]
        assert columns.tolist() == [len(used[number].columns) for number in sorted(used)]
        assert verdicts.tolist() == [[int(keep) for keep in tables.keeps(used[number])] for number in sorted(used)]
        assert [array.dtype for array in (numbers, places, columns, verdicts)] == [
            np.int64,
            np.int32,
            np.int64,
            np.uint8,
        ]
