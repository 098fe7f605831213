"""Write docs/reference/error_codes.md from the classes of errors: `.venv/bin/python -m scripts.error_codes`."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from headrace.base.errors import HeadraceError, Retry

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "error_codes.md"
PACKAGES = ("headrace", "actors", "protos", "spark_apply", "topology")
HEAD = """\
# Error codes

Every error that Headrace raises on purpose has a class and a code. `--json` and the logs show the code; the message
says what happened, and the hint of the error is more exact than the last column here.

`scripts/error_codes.py` writes this page from the classes.

| retried | means |
|---|---|
| by itself | Headrace retries until the cause is gone |
| after a fix | an operator acts first |
| no | the input was refused, or it is a defect |

| code | class | cause | retried | fix |
|---|---|---|---|---|
"""
RETRIED = {Retry.TIMED: "by itself", Retry.MANUAL: "after a fix", Retry.NEVER: "no"}


def classes(root: type[HeadraceError] = HeadraceError) -> Iterator[type[HeadraceError]]:
    """Yield the classes below a class that modules have imported."""
    for each in root.__subclasses__():
        yield each
        yield from classes(each)


def coded() -> list[type[HeadraceError]]:
    """Return every class with a code of its own, by code."""
    for file in sorted(each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        if re.search(r'^    code = "HDR-', file.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    # not those that tests define
    mine = {each for each in classes() if "code" in vars(each) and each.__module__.partition(".")[0] in PACKAGES}
    return sorted(mine, key=lambda each: (each.code, each.__name__))


def page() -> str:
    """Return the text of the page."""
    lines = []
    for each in coded():
        cause = " ".join((inspect.getdoc(each) or "").partition("\n\n")[0].split())
        lines.append(f"| {each.code} | `{each.__name__}` | {cause} | {RETRIED[each.retry]} | {each.fix} |\n")
    return HEAD + "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
