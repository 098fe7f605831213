"""What `check` and `status` print of rows is followed as it is printed, while changes arrive: both sides are equal then, and the error queue is empty."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.followed_fixes import FollowedFixes

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture
def site(source_database: str, destination_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FollowedFixes]:
    with closing(FollowedFixes(source_database, destination_database, tmp_path, monkeypatch)) as made:
        yield made


def test_the_printed_copy_ends_what_an_exchange_of_values_left_in_the_error_queue(site: FollowedFixes) -> None:
    """Case 16 of the field: the source checks a unique key at the end of the statement."""
    site.run("src", "CREATE TABLE slot (id int PRIMARY KEY, pos int, UNIQUE (pos) DEFERRABLE INITIALLY DEFERRED)")
    site.run("dst", "CREATE TABLE slot (id int PRIMARY KEY, pos int, UNIQUE (pos))")
    site.run("both", "CREATE TABLE other (id int PRIMARY KEY, v int)")
    site.run("src", "INSERT INTO slot SELECT g, g FROM generate_series(1, 10) g")
    site.start("slot", "other")
    (fix,) = [found.fix for found in site.check() if "is DEFERRABLE" in found.problem]
    site.run(
        "src", "UPDATE slot SET pos = 11 - pos", "UPDATE slot SET pos = pos + 1", "INSERT INTO slot VALUES (11, 1)",
        "BEGIN; UPDATE slot SET pos = 12 - pos; INSERT INTO other VALUES (1, 1); COMMIT",  # of which the copy has a part
        "INSERT INTO other VALUES (2, 2)",
    )
    site.wait_applied()
    assert len(site.errors()) > 1
    with site.users("INSERT INTO slot VALUES (1000 + {n}, 1000 + {n})", "UPDATE other SET v = {n}"):
        assert site.follow(fix) == ["copy public.slot", "errors execute --all"]
    site.wait_applied()
    assert site.errors() == []
    site.assert_same()
