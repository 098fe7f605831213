"""Write requirements.lock: one version of every package that Headrace runs with, and the hash of its file.

    .venv/bin/python scripts/lock.py

It lists the files that pip selects for CPython 3.11 on Linux, x86-64. Install with it:

    pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation .
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
_HEADER = """\
# Every package that Headrace runs with, and the hash of its file for CPython 3.11 on Linux, x86-64; written by scripts/lock.py.
# pip install --require-hashes -r requirements.lock && pip install --no-deps --no-build-isolation .
"""


def resolved() -> list[tuple[str, str, str]]:
    """Return name, version and SHA-256 of every package that pip would install, sorted by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--dry-run",
                "--ignore-installed",
                "--report",
                str(report),
                str(ROOT),
            ],
            check=True,
        )
        found = json.loads(report.read_text(encoding="utf-8"))
    return sorted(
        (
            each["metadata"]["name"].lower().replace("_", "-"),
            each["metadata"]["version"],
            each["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for each in found["install"]
        if "archive_info" in each["download_info"]
    )


def main() -> None:
    """Write the file."""
    if sys.version_info[:2] != (3, 11) or platform.system() != "Linux" or platform.machine() != "x86_64":
        sys.exit("lock: the file is for CPython 3.11 on Linux, x86-64: run it there")
    lines = [f"{name}=={version} \\\n    --hash=sha256:{digest}\n" for name, version, digest in resolved()]
    LOCK.write_text(_HEADER + "".join(lines), encoding="utf-8")
    sys.stdout.write(f"lock: {len(lines)} packages\n")


if __name__ == "__main__":
    main()
