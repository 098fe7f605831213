"""`headrace.testing` gives the same results for the example files as the components do for the same changes: whole
batches, encoded, through queues.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.databases.connectors import value_types
from headrace.lcr.batch import LcrBatch
from headrace.lcr.row_lcr import RowLcr
from headrace.lcr.scn import Scn
from headrace.rules.evaluation import RuleEvaluation
from headrace.rules.rule import RuleSet
from headrace.testing import Rules, Table, row_lcr, values_of
from headrace.testing.lcrs import batch_of, view
from protos import codec
from tests.support.session.seeds import seeds
from tests.support.topologies.example_tables import EXAMPLES, TABLES, TIMES
from tests.support.wire.two_queues import TwoQueues
from topology.file.reading import read_topology
from topology.routing.ways import Way, rules_at_the_end, ways_to

VALUES = {
    "int4": [1, 40, 50, None],
    "text": ["shipped", "new", "internal", "Ann@a.de", None, ""],
    "numeric": [1, 2.5, None],
}


def changes(tables: list[Table], seed: int) -> list[RowLcr]:
    chosen = random.Random(seed)
    found = []
    for _ in range(60):
        table, command = chosen.choice(tables), chosen.choice(["INSERT", "UPDATE", "DELETE"])
        rows = []
        for _ in range(2):
            row: dict[str, Any] = {name: chosen.choice(VALUES[kind]) for name, kind in table.columns.items()}
            rows.append(row | {name: chosen.randrange(5) for name in table.key})
        old, new = rows
        found.append(
            row_lcr(table, command, old=old if command != "INSERT" else None, new=new if command != "DELETE" else None)
        )
    return found


def shown(lcr: RowLcr) -> tuple[object, ...]:
    images = (
        {name: value for name, value in values_of(lcr, kind).items() if name not in TIMES} for kind in ("old", "new")
    )
    return lcr.object_owner, lcr.object_name, lcr.command_type, *images


def live(batch: LcrBatch, way: Way, folder: Path) -> list[tuple[object, ...]]:
    """A batch as it leaves the apply process's reader: each client evaluates the bytes that it receives."""
    for number, client in enumerate(way.clients[:-1]):
        if number == 0:
            batch = RuleEvaluation(client.rules, types=value_types()).filter(batch)
            continue
        queues = TwoQueues(
            folder / str(number),
            client.rules if client.rules.include is not None or client.rules.exclude else RuleSet(),
        )
        queues.publish(replace(batch, previous_scn=Scn(0)))  # the first batch for the queue
        queues.work()
        (data,) = queues.arrived()
        batch = codec.decode(data)
    batch = RuleEvaluation(*rules_at_the_end([way]), types=value_types()).filter(batch)
    return [shown(view(batch, row)) for row in range(batch.row_count)]


@pytest.mark.seeded
@pytest.mark.parametrize("seed", seeds("changes of the examples", test=2, soak=30))
@pytest.mark.parametrize("example", TABLES)
def test_each_example_gives_offline_what_its_components_give(example: str, seed: int, tmp_path: Path) -> None:
    file = EXAMPLES / f"{example}.yaml"
    spec = read_topology(file)
    lcrs = changes(TABLES[example], seed)
    for apply in spec.applies:
        (way,) = ways_to(spec, apply)
        rules = Rules.from_file(file, *(client.name for client in way.clients))
        offline = [shown(each) for lcr in lcrs for each in rules.evaluate(lcr)]
        found = live(batch_of(lcrs), way, tmp_path / apply.name)
        assert found == offline
        assert len(found) > 0
        assert len({each[2] for each in found}) > 1
