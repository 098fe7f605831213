from __future__ import annotations

from databases.memory_source import MemorySource
from tests.support.redo_logs import committed, mine, miner, received, write_redo


def small_source() -> MemorySource:
    source = MemorySource()
    source.create_table("hr.t", ["id", "a", "b"], key=["id"])
    for n in range(20):
        with source.transaction() as t:
            t.insert("hr.t", id=str(n), a=f"a{n}")
            if n > 3:
                t.update("hr.t", {"id": str(n - 1)}, b="x" * n)
            if n > 5:
                t.delete("hr.t", {"id": str(n - 5)})
    return source


def test_batches_hold_exactly_what_was_committed(tmp_path):
    source = small_source()
    writer = write_redo(tmp_path, source)
    found = received(mine(miner(tmp_path), writer))
    assert found == committed(source)
