"""An apply process keeps existing rows only once, whatever happens to its process later."""

from __future__ import annotations

from typing import Any

import pytest

from actors.apply import ApplyHost
from headrace.status.applies import ApplyStatus, TableCopy


def host(spec: Any, call: str = "one") -> ApplyHost:
    made = ApplyHost(spec, "x", "label", keep_existing=("id of t", "id of u"), keep_call=call)
    made._to_keep = frozenset({("public", "t"), ("public", "u")})
    return made


def status(*states: str, ready: bool = True) -> ApplyStatus:
    tables = (TableCopy(owner="public", name=name, state=state) for name, state in zip("tu", states, strict=True))
    return ApplyStatus(name="x", ready=ready, instantiation=tuple(tables))


def test_rows_are_kept_until_every_table_is_recorded_and_never_later(spec):
    """A destination restored from a backup older than the first apply has no records, and old rows."""
    first = host(spec)
    first._note_kept(status("KEPT", "DONE"))
    assert first._keep_existing == frozenset()
    assert host(spec)._keep_existing == frozenset(), "Ray restarts the process with the arguments of its creation"
    assert host(spec, "two")._keep_existing == {"id of t", "id of u"}, "another call of `up`"


@pytest.mark.parametrize(
    "seen",
    [
        status("KEPT", "PENDING", ready=False),
        status("KEPT", "FAILED"),
        ApplyStatus(name="x", state="INITIALIZING"),
        status("DONE", "COPIED"),
    ],
)
def test_next_life_keeps_rows_while_a_table_is_not_recorded(spec, seen):
    first = host(spec)
    first._note_kept(seen)
    assert first._keep_existing == host(spec)._keep_existing == {"id of t", "id of u"}
