"""SQL with which a source records DDL, without a server."""

from __future__ import annotations

import hashlib

from headrace.databases.postgres.source.ddl.objects import EVENT_TRIGGERS, INSTALL, ROUTINES, VERSION
from headrace.databases.postgres.source.planning import plan_unseen_source
from headrace.rules.rule import Rule, RuleSet

DIGEST = "d8c10570b1448797"


def test_changed_sql_has_another_version() -> None:
    """`up` replaces only objects of an older version: if a release has this one, give `VERSION` the next number."""
    assert (VERSION, hashlib.sha256(INSTALL.encode()).hexdigest()[:16]) == (3, DIGEST)


def test_install_creates_everything_that_is_looked_for() -> None:
    assert all(f"CREATE EVENT TRIGGER {name} ON " in INSTALL for name in EVENT_TRIGGERS)
    assert all(f"headrace_ddl.{name}(" in INSTALL for name in ROUTINES)


def test_plan_for_a_server_that_does_not_exist_shows_what_ddl_needs() -> None:
    without, with_ddl = (
        plan_unseen_source("t", "s", (RuleSet(include=(Rule(owner="public", ddl=ddl),)),), version=18)
        for ddl in (False, True)
    )
    assert [step.statement.split()[0] for step in without] == ["CREATE", "SELECT"]
    assert [step.statement.split()[0] for step in with_ddl] == ["CREATE", "INSERT", "CREATE", "CALL", "SELECT"]
    assert with_ddl[2::2] == without
