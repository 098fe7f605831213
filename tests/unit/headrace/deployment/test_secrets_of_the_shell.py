"""Variables of the shell that components do not get: those that have a password of a database."""

from __future__ import annotations

import pytest

from headrace.databases.connectors import has_password


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:secret@h/d",
        "postgres://u:secret@h",
        "host=h password=secret",
        "postgresql://h/d?password=secret",
        "postgresql+psycopg://u:secret@h/d",
        "postgresql+psycopg2://u:secret@h/d",
        "jdbc:postgresql://h/d?user=u&password=secret",
        "postgresql://u:secret@h:port/d",  # may be a connection string with a typing error
        "postgresql+asyncpg://u:secret@h/d?ssl=require",
    ],
)
def test_connection_string_of_any_driver_has_a_password(text: str) -> None:
    assert has_password(text)


@pytest.mark.parametrize(
    "text", ["", "/usr/bin", "postgresql://u@h/d", "postgresql+psycopg://h/d", "my password", "mysql://u:secret@h"]
)
def test_other_texts_have_none(text: str) -> None:
    assert not has_password(text)
