"""The committed modules match the .proto files and the pinned generator."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scripts_protos", ROOT / "scripts" / "protos.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generated(script: ModuleType) -> dict[str, bytes]:
    return dict(script.generate())


def test_generator_is_the_pinned_one(script: ModuleType) -> None:
    assert importlib.metadata.version("grpcio-tools") == script.pinned_version()


def test_committed_modules_match_the_protos(script: ModuleType, generated: dict[str, bytes]) -> None:
    assert script.stale_modules(generated) == []


def test_every_proto_is_compiled(generated: dict[str, bytes]) -> None:
    names = {path.name.removesuffix(".proto") for path in (ROOT / "protos").glob("*.proto")}
    assert names >= {"lcr", "queue", "redo"}
    for name in names:
        assert {f"protos/{name}_pb2.py", f"protos/{name}_pb2.pyi", f"protos/{name}_pb2_grpc.py"} <= set(generated)


def test_changed_missing_and_leftover_modules_are_stale(script: ModuleType, generated: dict[str, bytes]) -> None:
    changed = dict(generated)
    changed["protos/lcr_pb2.py"] += b"#"
    changed["protos/new_pb2.py"] = b""
    del changed["protos/redo_pb2.pyi"]
    assert script.stale_modules(changed) == ["protos/lcr_pb2.py", "protos/new_pb2.py", "protos/redo_pb2.pyi"]
