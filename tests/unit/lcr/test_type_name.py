"""A type's name as one text."""

from __future__ import annotations

import pytest
from hypothesis import given

from headrace.lcr.type_name import possible_names, type_parts, type_text
from tests.support.values.hostile_names import names


@pytest.mark.seeded
@given(owner=names(), name=names())
def test_type_name_is_read_back_whatever_its_schema_is(owner: str, name: str) -> None:
    text = type_text(owner, name)
    assert type_parts(text) == (owner, name)
    assert name in possible_names(text)
    assert name in possible_names(f"{owner}.{name}") or owner.startswith('"')


def test_ordinary_type_is_written_as_in_the_log() -> None:
    assert type_text("app", "mood") == "app.mood"
    assert possible_names("app.mood") == ("mood",)
    assert possible_names("a.b.mood") == ("b.mood", "mood")
