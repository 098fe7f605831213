"""The columns of the views: each is documented, and commented in the schema."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.databases.destination_views import VIEWS
from headrace.databases.postgres.destination.records.schema import VERSIONS

DOCUMENT = (Path(__file__).parents[5] / "docs" / "reference" / "views.md").read_text(encoding="utf-8")


def test_every_column_of_every_view_is_documented_with_its_comment():
    for view in VIEWS:
        section = DOCUMENT.split(f"\n## {view.name}\n")[1].split("\n## ")[0]
        assert view.comment in section
        assert re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE) == [
            (column.name, column.meaning) for column in view.columns
        ]


def test_every_view_and_column_has_a_comment_in_the_schema():
    made = "\n".join(statement for version in VERSIONS for statement in version)
    for view in VIEWS:
        assert f"COMMENT ON VIEW headrace.{view.name} IS" in made
        for column in view.columns:
            assert f"COMMENT ON COLUMN headrace.{view.name}.{column.name} IS" in made
