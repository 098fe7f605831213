"""The identity of a state folder at a user's database: a moved folder keeps it, a copy gets a new one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from actors.site.connection import claim_on, original_of
from headrace.databases.postgres.claim import PostgresClaim
from headrace.deployment.deployment import Deployment
from tests.support.topologies.files import ONE_WAY, read
from topology.file.reading import read_topology
from topology.spec import SiteSpec, TopologySpec

OWN = ONE_WAY.replace("{kind: embedded}", '{kind: postgres, dsn: "${OWN_DSN}"}', 1)
NOBODY = "host=127.0.0.1 port=1 connect_timeout=1"


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TopologySpec:
    monkeypatch.setenv("OWN_DSN", NOBODY)
    (tmp_path / "one").mkdir()
    return read(tmp_path / "one", OWN, {"OWN_DSN": NOBODY})


def at(file: Path) -> tuple[TopologySpec, SiteSpec]:
    spec = read_topology(file)
    return spec, spec.site("a")


def identity(spec: TopologySpec, site: SiteSpec) -> str:
    claim = claim_on(spec, site)
    assert isinstance(claim, PostgresClaim)
    return claim._identity


def test_purge_of_a_copy_that_never_ran_leaves_the_originals_objects(spec: TopologySpec, tmp_path: Path):
    first = identity(spec, spec.site("a"))
    file = Path(shutil.copytree(tmp_path / "one", tmp_path / "two")) / spec.file.name
    copy, site = at(file)
    assert original_of(copy, site.name) == str(spec.state_dir / "sites" / "a")
    told: list[str] = []
    assert Deployment.read(file).down(purge=True, progress=told.append) == []
    assert any(line.startswith(f"a: nothing removed: {copy.state_dir} is a copy that has not run") for line in told)
    assert not copy.state_dir.exists()
    assert identity(spec, spec.site("a")) == first


def test_copy_that_ran_has_a_new_identity_and_a_moved_folder_keeps_its_own(spec: TopologySpec, tmp_path: Path):
    first = identity(spec, spec.site("a"))
    copy, site = at(Path(shutil.copytree(tmp_path / "one", tmp_path / "two")) / spec.file.name)
    second = identity(copy, site)
    assert second != first
    assert (original_of(copy, site.name), identity(copy, site)) == ("", second)
    shutil.rmtree(tmp_path / "two")
    moved, site = at((tmp_path / "one").rename(tmp_path / "two") / spec.file.name)
    assert (original_of(moved, site.name), identity(moved, site)) == ("", first)


def test_identity_that_an_earlier_version_wrote_stays(spec: TopologySpec):
    folder = spec.state_dir / "sites" / "a"
    folder.mkdir(parents=True)
    (folder / "identity").write_text("0123456789abcdef\n")
    assert original_of(spec, "a") == ""
    assert identity(spec, spec.site("a")) == "0123456789abcdef"
    assert (folder / "identity").read_text() == f"0123456789abcdef\n{folder}\n"
