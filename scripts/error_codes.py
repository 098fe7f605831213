"""Write docs/reference/error_codes.md from the classes of errors: `.venv/bin/python -m scripts.error_codes [--check]`."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
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


def import_all() -> None:
    """Import every module that defines an error code."""
    for file in sorted(each for package in PACKAGES for each in (ROOT / package).rglob("*.py")):
        if re.search(r'^    code = "HDR-', file.read_text(encoding="utf-8"), re.MULTILINE):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def page() -> str:
    """Return the text of the page."""
    import_all()
    mine = {each for each in classes() if each.__module__.partition(".")[0] in PACKAGES}
    lines = []
    for each in sorted(mine, key=lambda each: (each.code, each.__name__)):
        cause = " ".join((inspect.getdoc(each) or "").partition("\n\n")[0].split())
        if "code" in vars(each):
            lines.append(f"| {each.code} | `{each.__name__}` | {cause} | {RETRIED[each.retry]} | {each.fix} |\n")
    return HEAD + "".join(lines)


def main() -> int:
    """Write the page, or with `--check` say whether it is up to date."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{PAGE.name} is out of date: run `python -m scripts.error_codes`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
