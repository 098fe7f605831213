"""The environment of a process that switches from one Ray cluster to another."""

from __future__ import annotations

import os
import sys

import pytest

from actors.hosting import runtime
from spark_apply.application.environment import LOOPBACK

FIRST, SECOND, REMOTE = "127.0.0.1:1", "127.0.0.1:2", "192.0.2.1:3"


@pytest.fixture(autouse=True)
def _fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(runtime, "_environments", {})
    monkeypatch.setattr(runtime, "_own_environment", {})
    for name in (*LOOPBACK, "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH", "RAY_DEDUP_LOGS_SKIP_REGEX"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "")  # so that monkeypatch removes it again
        monkeypatch.delenv(name)


def test_known_cluster_is_reached_with_its_own_token_by_its_address_alone():
    runtime.prepare_process(FIRST, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "first"})
    runtime.prepare_process(SECOND, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "second"})
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == "second"
    runtime.prepare_process(FIRST, {})
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == "first"


def test_users_cluster_is_reached_with_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "the user's")
    runtime.prepare_process(FIRST, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "first"})
    runtime.prepare_process(REMOTE, {})
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == "the user's"
    assert {"RAY_AUTH_MODE", *LOOPBACK} & set(os.environ) == set()
