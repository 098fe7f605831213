"""A controller over fake actors and the real site of a source: the leftovers of a preparation whose outcome nobody saw.

A table that a user locks blocks ALTER PUBLICATION. An apply process that begins meanwhile does not know the table and
would skip its changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from actors.controller import Controller
from actors.source_database import DatabaseSite
from headrace.base.errors import PropagationError
from headrace.databases.embedded.servers import EmbeddedServer
from headrace.databases.postgres.source.database import PostgresSource
from headrace.status.plain import plain_status
from tests.support.actors.actor_system import FakeActors
from tests.support.actors.controllers import EVERYTHING, call_again, one_way_spec
from tests.support.clusters.system import wait_until
from tests.support.databases.statements import row_of
from tests.support.session.matrices import values
from tests.support.wire.links import loopback
from topology.spec import DatabaseSpec, TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

_ADDING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'ALTER PUBLICATION%'"
    " AND datname = current_database()"
)


def _never() -> bool:
    return False


class _Actors(FakeActors):
    """Fake actors, except for site a.

    An apply process knows the tables that it is given, or those that are captured when it is created.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, set[str]] = {}
        self.loses_answer_when: Callable[[], bool] = _never  # of the next `prepare` of site a, which continues
        self._source: DatabaseSite | None = None

    @property
    def source(self) -> DatabaseSite:
        assert self._source is not None
        return self._source

    def create(self, name: str, factory: str, arguments: Mapping[str, Any], **options: Any) -> None:
        if name == "site:a" and name not in self.running:
            self._source = DatabaseSite(**arguments, make_links=loopback())
            self._source.start()
        if name.startswith("apply:"):
            told = arguments.get("known")
            self.known[name] = {
                table.name for table in self.source.source.tables.captured() if told is None or table.identity in told
            }
        super().create(name, factory, arguments, **options)

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 5.0) -> Any:
        if name != "site:a" or name not in self.running:
            return super().call(name, method, *arguments, timeout_s=timeout_s)
        if method == "status":
            return plain_status(self.source.status())
        answer = getattr(self.source.answering(method), method)
        if method == "prepare" and self.loses_answer_when is not _never:
            threading.Thread(target=answer, args=arguments, daemon=True).start()
            wait_until("the answer is lost", self.loses_answer_when)
            self.loses_answer_when = _never
            raise PropagationError(f"{name} does not answer")
        return answer(*arguments)


class _Mortal:
    """Actors as a dying controller sees them: none of its calls returns until the test is over."""

    def __init__(self, actors: _Actors) -> None:
        self._actors, self._over, self.is_dead = actors, threading.Event(), False

    def bury(self, controller: Controller) -> None:
        self.is_dead = True
        self._over.set()
        controller.end()

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            self._end_if_dead()
            answer = getattr(self._actors, name)(*arguments, **options)
            self._end_if_dead()
            return answer

        return called

    def _end_if_dead(self) -> None:
        if self.is_dead:
            self._over.wait()
            raise PropagationError("it is dead")


@pytest.fixture
def source_dsn(pg_source: EmbeddedServer, fresh_database: Callable[[EmbeddedServer], str]) -> Iterator[str]:
    dsn = fresh_database(pg_source)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
    yield dsn
    source = PostgresSource(dsn, site="a")
    source.remove("one_way")
    source.close()


def _spec(folder: Path, dsn: str) -> TopologySpec:
    spec = one_way_spec(folder)
    return replace(spec, sites=(replace(spec.sites[0], database=DatabaseSpec(kind="postgres", dsn=dsn)), spec.sites[1]))


@pytest.mark.parametrize("lost", values(["the controller", "the answer"], "the controller"))
def test_no_apply_process_begins_while_old_preparation_may_add_a_table(
    tmp_path: Path, source_dsn: str, lost: str
) -> None:
    actors, spec = _Actors(), _spec(tmp_path, source_dsn)
    seen_by = _Mortal(actors)
    first = controller = Controller(spec, actors=seen_by)
    controller.start()
    try:
        wait_until("it runs", lambda: set(actors.running) == EVERYTHING)
        with psycopg.connect(source_dsn, autocommit=True) as looking, psycopg.connect(source_dsn) as user:
            looking.execute("CREATE TABLE u (id int PRIMARY KEY)")
            user.execute("LOCK TABLE u IN SHARE MODE")  # as CREATE INDEX takes

            def waiting() -> int:
                return int(row_of(looking.execute(_ADDING))[0])

            if lost == "the answer":
                actors.loses_answer_when = lambda: waiting() > 0
            actors.created.clear()
            call_again(controller)
            wait_until("the table is waited for", waiting)
            if lost == "the controller":
                seen_by.is_dead = True
                controller = Controller(spec, actors=actors)
                controller.start()
            wait_until("the next attempt waits, or does not", lambda: waiting() > 1 or "apply:x" in actors.created)
            user.commit()
            wait_until(
                "the table is captured", lambda: "u" in {table.name for table in actors.source.source.tables.captured()}
            )
        wait_until("it runs again", lambda: controller.detail_state() == "RUNNING" and "apply:x" in actors.running)
        assert actors.known["apply:x"] == {"t", "u"}
        wait_until(
            "what a preparation ends with is done",
            lambda: {table.name for table in actors.source.source.tables.receivers().tables} == {"t", "u"},
        )
    finally:
        controller.end()
        seen_by.bury(first)
        actors.source.end()
