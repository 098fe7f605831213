"""The site of the documents: every page is in its navigation, and it is built without a warning."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from scripts.site_files import on_page_markdown, outside
from tests.support.session.packages import ROOT

DOCS = ROOT / "docs"
# What a page would fetch from elsewhere when it is opened. Links to other sites are no such thing.
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="https?:|<link[^>]+stylesheet[^>]+href="https?:')


class Loader(yaml.SafeLoader):
    """Functions that the file names are not called."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda _loader, _suffix, _node: None)


def in_navigation(entry: Any) -> list[str]:
    """The pages of a part of the navigation, in their order."""
    if isinstance(entry, str):
        return [entry]
    return [page for each in (entry.values() if isinstance(entry, dict) else entry) for page in in_navigation(each)]


def test_every_page_is_once_in_the_navigation() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    pages = {str(file.relative_to(DOCS)) for file in DOCS.rglob("*.md")}
    decisions = {page for page in pages if re.fullmatch(r"decisions/0\d+-.*\.md", page)}
    assert sorted(in_navigation(settings["nav"])) == sorted(pages - decisions)
    assert decisions


def test_nothing_of_the_settings_fetches() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    assert settings["theme"]["font"] is False
    assert not {"extra_css", "extra_javascript"} & settings.keys()
    assert settings["strict"] is True


@pytest.mark.parametrize(
    ("page", "link", "path"),
    [
        ("tasks/a.md", "../../LICENSE", "LICENSE"),
        ("index.md", "../examples/rules.yaml", "examples/rules.yaml"),
        ("tasks/a.md", "../how/order.md", ""),
        ("tasks/a.md", "../../nothing", ""),
        ("tasks/a.md", "../../../etc/passwd", ""),
        ("tasks/a.md", "../../examples", ""),
    ],
)
def test_files_outside_of_the_folder_are_told_from_pages(page: str, link: str, path: str) -> None:
    assert outside(page, link) == path


def test_links_to_such_files_lead_to_their_place_in_the_site() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="tasks/a.md"))
    text = "[a](../../examples/rules.yaml) [b](../how/order.md#x) [c](b.md)"
    assert on_page_markdown(text, page=page, config=None, files=None) == (
        "[a](../examples/rules.yaml) [b](../how/order.md#x) [c](b.md)"
    )


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """In an environment of its own, with the packages that `make site` installs."""
    venv.create(tmp_path / "environment", with_pip=True)
    programs = tmp_path / "environment" / "bin"
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["site"]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout + done.stderr

    run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted)
    said = run(programs / "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site")
    assert "WARNING" not in said
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 100
    assert [page.name for page in pages if FETCHED.search(page.read_text(encoding="utf-8"))] == []
    assert (tmp_path / "site" / "examples" / "rules.yaml").read_bytes() == (
        ROOT / "examples" / "rules.yaml"
    ).read_bytes()
