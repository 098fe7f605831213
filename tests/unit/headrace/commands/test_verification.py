"""Tables as commands name them."""

import pytest

from headrace.commands.verification import table_name
from streams.errors import ConfigError


@pytest.mark.parametrize(("text", "name"), [
    ("hr.employees", ("hr", "employees")),
    ("odd schema.the table", ("odd schema", "the table")),
    ('"Odd.Schema".t', ("Odd.Schema", "t")),
    ('"Odd Schema.x"."Tab ""le"""', ("Odd Schema.x", 'Tab "le"')),
    ('hr.size 5"', ("hr", 'size 5"')),
])
def test_a_table_is_named_as_the_file_does(text: str, name: tuple[str, str]) -> None:
    assert table_name(text) == name


@pytest.mark.parametrize("text", ["employees", "hr.", ".employees", ""])
def test_a_table_without_its_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no table"):
        table_name(text)
