"""A node whose Ray was started without the secret of Spark is named, with what is to be exported there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from actors.security.links import spark_findings
from spark_apply.application.authentication import SECRET
from topology.spec import DatabaseSpec, SiteSpec

ROOT = Path(__file__).parents[4]
SITE = SiteSpec(name="dbs1", database=DatabaseSpec(kind="embedded"), node=(("site_dbs1", 1.0),))


def test_a_node_without_the_secret_of_spark_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SECRET, raising=False)
    (found,) = spark_findings(SITE)
    assert found.path == "sites.dbs1.node"
    assert not found.is_error
    monkeypatch.setenv(SECRET, "")
    assert list(spark_findings(SITE)) == [found]


def test_a_node_with_the_variable_that_the_fix_names_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SECRET, raising=False)
    (found,) = spark_findings(SITE)
    (name,) = re.findall(r"export one (\w+)", found.fix)
    assert f"{name}=$(" in (ROOT / "cluster.yaml").read_text()
    monkeypatch.setenv(name, "of the cluster")
    assert list(spark_findings(SITE)) == []


def test_a_site_without_a_node_of_its_own_is_named_as_well(monkeypatch: pytest.MonkeyPatch):
    """It runs on the head of a cluster, where Ray may have been started without the secret, too."""
    monkeypatch.delenv(SECRET, raising=False)
    (found,) = spark_findings(SiteSpec(name="dbs1", database=DatabaseSpec(kind="embedded")))
    assert found.path == "sites.dbs1"
