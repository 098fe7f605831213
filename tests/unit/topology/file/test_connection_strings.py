"""Connection strings: references are resolved in place, secrets in the file are refused."""

from __future__ import annotations

import pytest

from topology.file.connection_strings import ConnectionStringError, resolve
from topology.file.secret_sources import references


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("${DSN}", {"DSN": "postgresql://u:p%40ss@h/d"}, "postgresql://u:p%40ss@h/d"),
        (
            "postgresql://${U}:${P}@${H}/d",
            {"U": "me", "P": "p@:/ss", "H": "h1:5433,h2:5434"},
            "postgresql://me:p%40%3A%2Fss@h1:5433,h2:5434/d",
        ),
        (
            "postgresql://h/${D}?sslrootcert=${C}",
            {"D": "a b", "C": "/x/y"},
            "postgresql://h/a%20b?sslrootcert=%2Fx%2Fy",
        ),
        ("host=h password=${P} dbname=d", {"P": "it's a \\ secret"}, "host=h password='it\\'s a \\\\ secret' dbname=d"),
        ("host=h password='${P}' dbname=d", {"P": "it's"}, "host=h password='it\\'s' dbname=d"),
        ("host=${H}.example.com dbname=d", {"H": "db1"}, "host=db1.example.com dbname=d"),
        ("host=h user=u", {}, "host=h user=u"),
    ],
)
def test_reference_is_escaped_for_its_position(text, environment, expected):
    assert resolve(text, environment) == expected


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:secret@h/d",
        "postgres://u:secret@h",
        "host=h password=secret",
        "host=h password = 'a b'",
        "postgresql://h/d?user=u&password=secret",
        "host=h sslpassword=x",
        "postgresql://u:pre${P}@h/d",
        "host=h password=pre${P}",
    ],
)
def test_password_in_the_file_is_refused_and_never_shown(text):
    with pytest.raises(ConnectionStringError) as caught:
        resolve(text, {"P": "x"})
    assert caught.value.problem == "has a password in the file"
    assert "secret" not in caught.value.fix


@pytest.mark.parametrize("text", ["postgresql://u@h/d", "postgresql://u:@h/d", "host=h passfile=/x/y user=u"])
def test_connection_string_without_a_password_is_accepted(text):
    assert resolve(text, {}) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${A}", "the environment variable A is not set"),
        ("host=$A", "has a $ that is not a reference"),
        ("host=${A", "has a $ that is not a reference"),
        ("host=${1A}", "has a $ that is not a reference"),
        ("somewhere", "is not a connection string"),
        ("", "is not a connection string"),
        ("postgresql://u@h:54x2/d", "has a host or a port that cannot be one"),
        ("host=h port=5432x", "has a host or a port that cannot be one"),
        ("host=h no_such_word=1", "cannot be parsed"),
        ("postgresql://u@h/d?no_such_word=1", "cannot be parsed"),
    ],
)
def test_invalid_connection_string_is_refused(text, problem):
    with pytest.raises(ConnectionStringError) as caught:
        resolve(text, {})
    assert caught.value.problem == problem


def test_an_empty_variable_counts_as_missing():
    with pytest.raises(ConnectionStringError, match="A is not set"):
        resolve("${A}", {"A": ""})


def test_references_are_named_once_in_order():
    assert references("${B} ${A} ${B}") == ("B", "A")
