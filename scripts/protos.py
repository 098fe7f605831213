"""Generate protos/*_pb2.py, *_pb2.pyi and *_pb2_grpc.py from protos/*.proto; `--check` only compares.

    python scripts/protos.py           write the modules
    python scripts/protos.py --check   exit 1 when a committed module differs from what would be written

The generator is pinned exactly in pyproject.toml, because the modules are committed and compared byte for byte:
another version may write other bytes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "protos"  # relative to ROOT: it becomes the import name of the modules
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, change nothing")
    only_check = parser.parse_args(arguments).check
    wanted, found = pinned_version(), importlib.metadata.version("grpcio-tools")
    if found != wanted:
        sys.stderr.write(f"protos: grpcio-tools {found} is installed, {wanted} is needed: run make setup\n")
        return 1
    modules = generate()
    stale = stale_modules(modules)
    if only_check:
        for path in stale:
            sys.stderr.write(f"protos: {path} is not what its .proto gives: run make protos\n")
        return 1 if stale else 0
    for path in stale:
        if path in modules:
            (ROOT / path).write_bytes(modules[path])
        else:
            (ROOT / path).unlink()
        sys.stdout.write(f"protos: {path}\n")
    return 0


def pinned_version() -> str:
    """Return the version of grpcio-tools that pyproject.toml pins."""
    match = re.search(r'"grpcio-tools==([\w.]+)"', (ROOT / "pyproject.toml").read_text())
    if match is None:
        message = "pyproject.toml does not pin grpcio-tools with =="
        raise SystemExit(message)
    return match.group(1)


def generate() -> dict[str, bytes]:
    """Return every generated module, by its path relative to the repository."""
    from grpc_tools import protoc  # only here: the test of stale modules needs no generator

    sources = sorted(f"{FOLDER}/{path.name}" for path in (ROOT / FOLDER).glob("*.proto"))
    with tempfile.TemporaryDirectory(prefix="headrace-protos-") as folder:
        # The well-known types' descriptions come with the generator.
        included = resources.files("grpc_tools") / "_proto"
        outputs = [f"--{kind}={folder}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        if protoc.main(["protoc", f"-I{ROOT}", f"-I{included}", *outputs, *sources]) != 0:
            message = "protos: the generator refused a .proto file (see above)"
            raise SystemExit(message)
        return {f"{FOLDER}/{path.name}": path.read_bytes() for path in sorted((Path(folder) / FOLDER).iterdir())}


def stale_modules(modules: dict[str, bytes]) -> list[str]:
    """Return paths whose committed bytes differ from `modules`, are missing, or no longer have a .proto file."""
    committed = {
        f"{FOLDER}/{path.name}": path.read_bytes() for suffix in SUFFIXES for path in (ROOT / FOLDER).glob(f"*{suffix}")
    }
    return sorted(path for path in committed.keys() | modules.keys() if committed.get(path) != modules.get(path))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
