"""Tables that leave a running topology without an edit: a controller over fake actors."""

from __future__ import annotations

from tests.support.actors.controllers import call_again, captured, started


def test_table_renamed_out_of_the_rules_is_left_before_apply_restarts(spec, actors):
    """Leaving raises the epoch at the destination: later, it would fence out the new driver."""
    actors.captured["site:a"] = captured("t", "u")
    controller = started(spec, actors)
    actors.captured["site:a"] = captured("t")
    actors.uncaptured["site:a"] = ("public.u",)
    actors.calls.clear()
    call_again(controller)
    for _ in range(6):
        controller.step()
    ended, left, begun = (
        actors.calls.index(call) for call in (("apply:x", "end"), ("site:b", "leave_out"), ("apply:x", "create"))
    )
    assert ended < left < begun
    assert actors.kept == {"x": ("id of t",)}
