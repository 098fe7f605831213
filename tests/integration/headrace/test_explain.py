"""`headrace explain` on real servers: causes planted in the tables, the log and the rules, without Ray and Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psycopg
import pytest

from actors.capture import CaptureHost
from headrace.base.errors import ConfigError
from headrace.console.exit_codes import DONE, FINDING
from headrace.databases.connectors import DatabaseAccess, open_row_reader
from headrace.databases.ports import Instantiation
from headrace.databases.postgres.destination.database import PostgresDestination
from headrace.databases.postgres.source.database import PostgresSource
from headrace.lcr.scn import Scn
from headrace.lcr.table_name import TableName
from headrace.links.ports import RedoPosition
from headrace.rules.rule import Rule, RuleSet
from headrace.rules.table_settings import KeyColumns, TableSettings
from headrace.tracing.explain import RowQuestion, explain_row, parsed_key
from tests.support.actors.overviews import overview_from
from tests.support.databases.destination_contract import error_transaction
from tests.support.redo.postgres_redo import RedoSite
from topology.routing.ways import route
from topology.spec import ApplySpec, CaptureSpec, DatabaseSpec, PropagationSpec, QueueSpec, SiteSpec, TopologySpec

pytestmark = [pytest.mark.postgres, pytest.mark.slow]

T = TableName("public", "t")
TABLE = """CREATE TABLE t (id numeric(10,2), line int, at timestamptz, a text, PRIMARY KEY (id, line))"""


class Pair:
    """A source with its redo, and a destination; the test wrote the destination's rows there."""

    def __init__(self, source: str, destination: str, folder: Path) -> None:
        self.spec = route(
            TopologySpec(
                name="topo",
                file=folder / "topo.yaml",
                state_dir=folder,
                sites=tuple(
                    SiteSpec(name=name, database=DatabaseSpec(kind="postgres", dsn=dsn))
                    for name, dsn in (("dbs1", source), ("dbs2", destination))
                ),
                queues=(QueueSpec(name="q1", site="dbs1"), QueueSpec(name="q2", site="dbs2")),
                captures=(
                    CaptureSpec(
                        name="c", site="dbs1", source="dbs1", queue="q1", rules=RuleSet(include=(Rule(owner="public"),))
                    ),
                ),
                propagations=(
                    PropagationSpec(
                        name="p", from_queue="q1", to_queue="q2", rules=RuleSet(exclude=(Rule(name="left_out"),))
                    ),
                ),
                applies=(ApplySpec(name="apply_x", site="dbs2", source="dbs1", queue="q2"),),
            )
        )
        self.redo = RedoSite(source, folder / "sites" / "dbs1" / "redo")
        self.there = psycopg.connect(destination, autocommit=True)
        for connection in (self.redo.user, self.there):
            connection.execute(TABLE)
        self.redo.user.execute("CREATE TABLE left_out (id int PRIMARY KEY)")
        self.destination = PostgresDestination(destination, site="dbs2")
        self.destination.prepare("topo")
        self.epoch = self.destination.raise_epoch("topo", "apply_x").epoch
        self.redo.source.prepare("topo", (RuleSet(include=(Rule(owner="public"),)),))
        self.redo.attach()
        self.capture = CaptureHost(self.spec, "c", "")
        self.low_watermark = 1 << 62

    def copied(self, scn: int, state: str = "DONE") -> None:
        (captured,) = (t for t in self.redo.source.captured("topo") if t.name == "t")
        self.destination.record_instantiation(
            "topo",
            "apply_x",
            self.epoch,
            Instantiation(
                source="dbs1",
                identity=captured.identity,
                owner="public",
                name="t",
                scn=Scn(scn),
                state=state,
                digest="d",
            ),
        )

    def call(self, name: str, method: str, *arguments: Any, timeout_s: float = 0.0) -> Any:
        """Call as `RayActors.call` does."""
        if method == "write_marker":
            return self.redo.source.write_marker(*arguments)
        if method == "captured":
            return self.redo.source.captured("topo")
        assert (name, method) == ("capture:c", "find_changes")
        self.redo.catch_up()
        position = self.redo.writer.position
        self.capture._redo_end = RedoPosition(position.segment, position.offset, position.scn)
        return self.capture.find_changes(*arguments)

    def explain(self, key: str, table: TableName = T) -> tuple[int, dict[str, Any]]:
        overview = {
            "components": [
                {"name": "capture:c", "sent_scn": 1 << 62},
                {"name": "apply:apply_x", "received_scn": 1 << 62, "low_watermark_scn": self.low_watermark},
                *({"name": f"queue:{name}", "sources": {"dbs1": {"position_scn": 1 << 62}}} for name in ("q1", "q2")),
            ]
        }
        printed: list[Any] = []
        output = SimpleNamespace(json=printed.append, result=lambda _: None)
        code = explain_row(
            output,
            self.spec,
            self,
            RowQuestion(table=table, key=parsed_key(key)),
            overview=overview_from(overview),
            progress=lambda _: None,
        )
        (document,) = json.loads(json.dumps(printed, default=str))
        (verdict,) = document["verdicts"]
        return code, verdict | {"key": document["key"]}

    def close(self) -> None:
        self.redo.close()
        self.destination.remove("topo")
        self.destination.close()
        self.there.close()


@pytest.fixture
def pair(
    source_database: str,
    destination_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Pair]:
    made = Pair(source_database, destination_database, tmp_path)
    monkeypatch.setattr(
        "actors.site.connection.running_access",
        lambda spec, site: DatabaseAccess(
            site=site.name,
            kind="postgres",
            dsn=site.database.dsn,
        ),
    )
    yield made
    made.close()
    source = PostgresSource(made.redo.dsn)
    source.remove("topo")
    source.close()


def test_planted_causes_are_found_in_real_tables_and_real_redo(pair: Pair) -> None:
    user, there = pair.redo.user, pair.there
    user.execute("INSERT INTO t VALUES (1, 1, '2026-01-01', 'in the copy')")
    pair.copied(pair.redo.catch_up())
    user.execute("INSERT INTO t VALUES (2, 1, '2026-01-01', 'equal'), (2, 2, now(), 'changed there')")
    there.execute("INSERT INTO t VALUES (2, 1, '2026-01-01', 'equal'), (2, 2, now(), 'by hand')")
    with user.transaction():
        user.execute("SELECT pg_logical_emit_message(true, 'headrace.tag', '\\x0b'::bytea)")
        user.execute("INSERT INTO t VALUES (3, 1, NULL, 'tagged')")
    user.execute("INSERT INTO t VALUES (4, 1, NULL, 'failed')")
    user.execute("INSERT INTO left_out VALUES (1)")
    there.execute("CREATE TABLE left_out (id int PRIMARY KEY)")

    assert pair.explain("2.00,1")[0] == DONE
    code, found = pair.explain("id=2,line=2")
    assert (code, found["verdict"]) == (FINDING, "ARRIVED")
    assert any("different in at, a" in fact for fact in found["evidence"])
    assert found["key"] == {"id": "2.00", "line": "2"}, "in the database's form, and in the binary form of redo"
    assert (pair.explain("3,1")[1]["verdict"], pair.explain("3,1")[1]["place"]) == ("TAG", "capture:c")
    assert pair.explain("1,1")[1]["verdict"] == "IN THE COPY"
    assert pair.explain("1", TableName("public", "left_out"))[1]["place"] == "propagation:p"
    assert pair.explain("99,1")[1]["verdict"] == "SAME"

    scn = pair.explain("4,1")[1]["scn"]
    pair.low_watermark = scn - 1
    assert (pair.explain("4,1")[1]["verdict"], pair.explain("4,1")[1]["place"]) == ("ON THE WAY", "apply:apply_x")
    session = pair.destination.open_session("topo", "apply_x", server=0, epoch=pair.epoch, tag=b"\x00")
    session.begin()
    session.put_error(
        error_transaction(apply="apply_x", source="dbs1", commit_scn=scn), b"", np.empty(0, np.uint64), part=0
    )
    session.commit([], Scn(0))
    session.close()
    assert pair.explain("4,1")[1]["verdict"] == "ERROR QUEUE"


def test_table_made_after_up_and_table_without_a_copy_are_distinguished(pair: Pair) -> None:
    pair.redo.user.execute("INSERT INTO t VALUES (1, 1, NULL, 'x')")
    assert pair.explain("1,1")[1]["verdict"] == "NOT COPIED"
    for connection in (pair.redo.user, pair.there):
        connection.execute("CREATE TABLE later (id int PRIMARY KEY)")
    pair.redo.user.execute("INSERT INTO later VALUES (1)")
    found = pair.explain("1", TableName("public", "later"))[1]
    assert (found["verdict"], found["place"]) == ("NOT CAPTURED", "site:dbs1")


@pytest.mark.parametrize(
    ("table", "key", "problem"),
    [
        ("t", "x,1", "is not a value of type numeric"),
        ("t", "1", "identified by id, line"),
        ("t", "nothing=1", "no column nothing"),
        ("none", "1", "no table public.none"),
        ("t", "1,1,1", "not by 3 values"),
        ("t", "a='", "several rows"),
    ],
)
def test_key_that_the_table_lacks_is_refused_with_the_existing_one(
    pair: Pair, table: str, key: str, problem: str
) -> None:
    if problem.startswith("several"):
        pair.redo.user.execute("INSERT INTO t VALUES (1, 1, NULL, ''''), (1, 2, NULL, '''')")
    with pytest.raises(ConfigError, match=problem):
        pair.explain(key, TableName("public", table))


def test_key_has_the_databases_own_text_and_binary_form(pair: Pair) -> None:
    access = DatabaseAccess(site="dbs1", kind="postgres", dsn=pair.redo.dsn)
    reader = open_row_reader(access)
    try:
        key = reader.key_of("public", "t", (("", "02.5"), ("", " 7")))
        assert [(part.column, part.text) for part in key] == [("id", "2.50"), ("line", "7")]
        assert key[1].binary == (7).to_bytes(4, "big")
        assert reader.rows_of("public", "none", key) is None
        assert reader.rows_of("public", "t", key) == ()
        pair.redo.user.execute("INSERT INTO t VALUES (2.5, 7, NULL, NULL)")
        assert reader.rows_of("public", "t", key) == ({"id": "2.50", "line": "7", "at": None, "a": None},)
    finally:
        reader.close()


def test_row_is_found_by_the_substitute_key_despite_additional_columns(pair: Pair) -> None:
    """The destination has its own primary key, as tables that need a substitute key do."""
    settings = TableSettings(key_columns=(KeyColumns(owner="public", name="v", columns=("code",)),))
    pair.spec = route(replace(pair.spec, applies=(replace(pair.spec.applies[0], tables=settings),)))
    pair.redo.user.execute(
        "CREATE TABLE v (id int PRIMARY KEY, code text, a text); ALTER TABLE v REPLICA IDENTITY FULL"
    )
    pair.redo.source.prepare("topo", (RuleSet(include=(Rule(owner="public"),)),))
    pair.there.execute(
        "CREATE TABLE v (own int GENERATED ALWAYS AS IDENTITY (START 100) PRIMARY KEY, id int, code text UNIQUE, a"
        " text)"
    )
    pair.redo.user.execute("INSERT INTO v VALUES (1, 'x', 'same'), (2, 'y', 'changed')")
    pair.there.execute("INSERT INTO v (id, code, a) VALUES (1, 'x', 'same'), (2, 'y', 'by hand')")
    v = TableName("public", "v")
    code, found = pair.explain("x", v)
    assert (code, found["verdict"], found["key"]) == (DONE, "SAME", {"code": "x"})
    evidence = pair.explain("y", v)[1]["evidence"]
    assert any("different in a" in fact and "own" not in fact for fact in evidence), evidence
