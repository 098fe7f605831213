"""A hook of mkdocs: files of the repository that pages link to are files of the site, too.

Pages name such a file as it lies in the repository, `../../examples/rules.yaml`, so the link works where the repository
is shown. In the site there is nothing above `docs`: the file gets the place in the site that it has in the repository.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")


def outside(page: str, link: str) -> str:
    """Return the path in the repository of what a page links to; empty: it is inside of `docs`, or no file.

    Args:
        page: the page, from `docs` on.
        link: relative to the page.
    """
    path = os.path.normpath(PurePosixPath("docs", page).parent / link)
    return "" if path.startswith(("docs/", "..")) or not (ROOT / path).is_file() else path


def on_files(files: Any, *, config: Any) -> Any:  # noqa: ANN401 - mkdocs is not in this environment
    """Add every file outside of `docs` that a page links to."""
    from mkdocs.structure.files import File

    wanted = {
        path
        for file in files.documentation_pages()
        for _, link in LINK.findall(file.content_string)
        if (path := outside(file.src_uri, link))
    }
    for path in sorted(wanted):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:  # noqa: ANN401, ARG001
    """Let links lead to these files."""
    here = page.file.src_uri

    def inside(found: re.Match[str]) -> str:
        path = outside(here, found[2])
        return f"{found[1]}{os.path.relpath(path, PurePosixPath(here).parent)}" if path else found[0]

    return LINK.sub(inside, markdown)
