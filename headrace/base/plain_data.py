"""Dataclasses as plain data for `json`, and back by the types of their fields.

Used for files on disk and for messages to apply servers.
"""

from __future__ import annotations

import dataclasses
import json
import types
from functools import cache, partial
from pathlib import Path
from typing import Any, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from headrace.base.errors import ConfigError

__all__ = ["AsBytes", "SettingsAsBytes", "as_json", "from_json"]

T = TypeVar("T")
_SCALARS = frozenset({str, int, float, bool})  # types that `json` has, too


def as_json(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return a dataclass as plain data for `json`."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(value), default=_plain))
    return plain


def from_json(kind: type[T], document: Any, *, is_complete: bool = True) -> T:  # noqa: ANN401 - what `json` made of a file
    """Read what `as_json` wrote.

    Args:
        kind: the dataclass.
        document: plain data.
        is_complete: this version knows every key; False: unknown keys are skipped.

    Raises:
        ConfigError: the document does not fit the dataclass: another version of Headrace wrote it.
    """
    try:
        found: T = _read(kind, document, is_complete=is_complete)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"the stored {kind.__name__} cannot be read ({type(error).__name__})") from error
    return found


class AsBytes:
    """A dataclass that is sent to apply servers and tasks."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Serialise the dataclass."""
        return json.dumps(as_json(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        return from_json(cls, json.loads(data))


class SettingsAsBytes(AsBytes):
    """Settings that all have defaults: nothing is sent where nothing is set."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Serialise the settings; empty when nothing is set."""
        return b"" if self == type(self)() else super().to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote."""
        return super().from_bytes(data) if data else cls()


def _plain(value: object) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Path):
        return str(value)
    message = f"{type(value).__name__} cannot be stored"
    raise TypeError(message)


def _read(kind: Any, value: Any, *, is_complete: bool) -> Any:  # noqa: ANN401 - by the types of the fields
    """Build a value of the type `kind` from plain data."""
    if kind in _SCALARS:  # fast path for most fields: a status is read each second
        return kind(value)
    read = partial(_read, is_complete=is_complete)
    if dataclasses.is_dataclass(kind):
        hints = _hints(cast("type", kind))
        known = value.items() if is_complete else [(name, each) for name, each in value.items() if name in hints]
        return kind(**{name: read(hints[name], each) for name, each in known})  # type: ignore[operator]
    if get_origin(kind) is types.UnionType:  # "or None", or dataclasses that differ in their fields
        kinds = [each for each in get_args(kind) if each is not type(None)]
        if value is None or len(kinds) == 1:
            return None if value is None else read(kinds[0], value)
        return read(
            next(each for each in kinds if {field.name for field in dataclasses.fields(each)} == set(value)), value
        )
    if get_origin(kind) is tuple:
        members = get_args(kind)
        if len(members) == 2 and members[1] is Ellipsis:
            return tuple(read(members[0], each) for each in value)
        return tuple(read(member, each) for member, each in zip(members, value, strict=True))
    if get_origin(kind) is dict:
        _, members = get_args(kind)
        return {str(name): read(members, each) for name, each in value.items()}
    if kind is Any:
        return value
    if kind is bytes:
        return bytes.fromhex(value)
    return kind(value)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
