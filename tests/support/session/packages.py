"""The packages of an installation: those at the top, each with everything below."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["PACKAGES", "ROOT", "modules"]

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("headrace", "actors", "protos", "spark_apply", "topology")


def modules(*folders: str) -> Iterator[Path]:
    """Yield every handwritten module of these folders; generated ones are skipped."""
    for folder in folders:
        yield from (file for file in sorted((ROOT / folder).rglob("*.py")) if "_pb2" not in file.name)
