"""What `status --json` shows of apply processes beyond their state."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import PropagationError
from headrace.cli.app import main
from headrace.commands.described import with_descriptions
from headrace.databases.destination_views import ERRORS_MAX
from headrace.deployment.deployment import Deployment, NotUp
from headrace.status.overview import Overview
from headrace.status.plain import plain_status, status_of
from tests.support.actors.overviews import overview_from
from tests.support.topologies.files import ONE_WAY


class Applying:
    """Apply processes that answer, or do not."""

    def __init__(self, answers: dict[tuple[str, str], Any]) -> None:
        self.answers, self.asked = answers, list[tuple[str, str]]()

    def call_all(self, names: Iterable[str], method: str, *, timeout_s: float) -> dict[str, Any]:
        self.asked += [(name, method) for name in names]
        return {name: self.answers.get((name, method), PropagationError(f"{name} does not answer")) for name in names}


def overview(*components: dict[str, Any]) -> Overview:
    return overview_from({"components": [{"name": "queue:q", "kind": "queue", "state": "ENABLED"}, *components]})


def plain(component: dict[str, Any]) -> dict[str, Any]:
    """The document's entry for a component without any description."""
    return plain_status(status_of(component))


def described(found: Overview, actors: Any) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in with_descriptions(found, lambda: actors)["components"]}


def test_status_has_configuration_and_errors_without_row_values() -> None:
    configuration = {"parameters": {"commit_serialization": "FULL"}, "rules": [{"schema_name": "hr"}]}
    error = {"number": 3, "conflict_type": "insert_exists", "readable": ["id=4711"]}
    actors = Applying(
        {("apply:a", "configuration"): configuration, ("apply:a", "first_errors"): [error] * (ERRORS_MAX + 5)}
    )
    found = described(overview({"name": "apply:a", "kind": "apply", "errors": ERRORS_MAX + 5}), actors)
    assert found["apply:a"]["configuration"] == configuration
    assert found["apply:a"]["error_transactions"] == [{"number": 3, "conflict_type": "insert_exists"}] * ERRORS_MAX
    assert "views" not in found["apply:a"], "the apply process did not answer the call of views"
    assert found["queue:q"] == plain({"name": "queue:q", "kind": "queue", "state": "ENABLED"})


def test_status_asks_for_errors_only_if_there_are_any() -> None:
    actors = Applying({("apply:a", "configuration"): {"rules": []}})
    found = described(
        overview(
            {"name": "apply:a", "kind": "apply", "errors": 0},
            {"name": "apply:b", "kind": "apply", "errors": 2, "state": "UNREACHABLE"},
        ),
        actors,
    )
    assert (found["apply:a"]["configuration"], found["apply:a"]["error_transactions"]) == ({"rules": []}, [])
    assert found["apply:b"] == plain({"name": "apply:b", "kind": "apply", "errors": 2, "state": "UNREACHABLE"})
    assert ("apply:a", "first_errors") not in actors.asked


def test_unreachable_apply_process_is_not_asked_again() -> None:
    """On a machine that is cut off, each call would wait for its whole timeout."""
    actors = Applying({("apply:a", "configuration"): {"rules": []}})
    away = {"name": "apply:b", "kind": "apply", "state": "UNREACHABLE"}
    assert described(overview({"name": "apply:a", "kind": "apply", "state": "IDLE"}, away), actors)["apply:b"] == plain(
        away
    )
    assert {name for name, _ in actors.asked} == {"apply:a"}


def test_error_queue_of_a_stopped_or_starting_apply_process_is_read() -> None:
    error = {"number": 3, "conflict_type": "insert_exists", "readable": ["id=4711"]}
    actors = Applying({("apply:a", "first_errors"): [error]})
    found = described(
        overview(
            {"name": "apply:a", "kind": "apply", "state": "DISABLED"},
            {"name": "apply:b", "kind": "apply", "state": "INITIALIZING"},
        ),
        actors,
    )
    assert found["apply:a"]["error_transactions"] == [{"number": 3, "conflict_type": "insert_exists"}]
    assert "error_transactions" not in found["apply:b"], "it does not answer, so its error queue is unknown"


def test_views_include_the_error_queue_only_where_it_is_known() -> None:
    error = {
        "number": 3,
        "source": "s",
        "transaction_id": 77,
        "commit_scn": 150,
        "commit_time_us": 0,
        "row_count": 2,
        "failed_position": -1,
        "depends_on": 2,
        "conflict_type": "",
        "sqlstate": "",
        "message": "it waits",
        "created_us": 0,
        "readable": ["id=4711"],
        "edits": 0,
    }
    said = {"dba_apply": [{"apply_name": "a"}]}
    component = {"name": "apply:a", "kind": "apply", "errors": 1}
    found = described(
        overview(component), Applying({("apply:a", "views"): said, ("apply:a", "first_errors"): [error]})
    )["apply:a"]["views"]
    assert [
        (row["topology"], row["apply_name"], row["local_transaction_id"], row["message_number"])
        for row in found["dba_apply_error"]
    ] == [("t", "a", 3, 0)]
    assert (found["dba_apply"], found["dba_apply_error_messages"]) == (said["dba_apply"], [])
    assert "4711" not in str(found)
    assert described(overview(component), Applying({("apply:a", "views"): said}))["apply:a"]["views"] == said


def test_json_status_has_descriptions_and_stays_whole_without_a_cluster(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "t.yaml").write_text(ONE_WAY)
    apply = {"name": "apply:a", "kind": "apply", "site": "b", "state": "IDLE", "errors": 0}
    monkeypatch.setattr(Deployment, "overview", lambda _: overview(apply))
    monkeypatch.setattr("sys.argv", ["headrace", "status", str(tmp_path / "t.yaml"), "--json"])

    def shown(connect: Any) -> dict[str, Any]:
        monkeypatch.setattr(Deployment, "connect", connect)
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        return dict(json.loads(capsys.readouterr().out)["components"][1])

    assert shown(lambda _: Applying({("apply:a", "configuration"): {"rules": [1]}}))["configuration"] == {"rules": [1]}

    def gone(_: Deployment) -> Any:
        raise NotUp("it was ended meanwhile")

    assert shown(gone) == plain(apply)
