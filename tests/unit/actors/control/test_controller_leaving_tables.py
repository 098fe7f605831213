"""Tables that leave a topology that runs, by themselves: a controller over fake actors."""

from __future__ import annotations

from tests.support.actors.controllers import call_again, captured, started


def test_a_table_that_was_renamed_away_is_left_before_apply_begins_again_by_another_call(spec, actors):
    """Later the destination, which raises the epoch for that, would fence out the driver that has begun."""
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
