"""pgoutput messages made by hand, framed as the server sends them."""

from __future__ import annotations

import struct

NULL, UNCHANGED = None, "unchanged"
EPOCH_US = 946_684_800_000_000


def frame(message: bytes, *, start: int = 0, end: int = 0) -> bytes:
    payload = b"w" + struct.pack(">qqq", start, end, 0) + message
    return b"d" + struct.pack(">I", len(payload) + 4) + payload


def keepalive(end: int, *, reply: bool = False) -> bytes:
    payload = b"k" + struct.pack(">qqB", end, 0, reply)
    return b"d" + struct.pack(">I", len(payload) + 4) + payload


def begin(order_scn: int, transaction_id: int, time_us: int = EPOCH_US) -> bytes:
    return b"B" + struct.pack(">qqI", order_scn, time_us - EPOCH_US, transaction_id)


def commit(order_scn: int, commit_scn: int, time_us: int = EPOCH_US) -> bytes:
    return b"C" + struct.pack(">Bqqq", 0, order_scn, commit_scn, time_us - EPOCH_US)


def origin(name: str) -> bytes:
    return b"O" + struct.pack(">q", 0) + name.encode() + b"\0"


def type_name(number: int, owner: str, name: str) -> bytes:
    return b"Y" + struct.pack(">I", number) + owner.encode() + b"\0" + name.encode() + b"\0"


def relation(
    number: int,
    owner: str,
    name: str,
    columns: list[tuple[str, int, bool]] | list[tuple[str, int, bool, int]],
    identity: str = "d",
) -> bytes:
    """`columns`: (name, type number, is key[, type modifier])."""
    message = b"R" + struct.pack(">I", number) + owner.encode() + b"\0" + name.encode() + b"\0" + identity.encode()
    message += struct.pack(">H", len(columns))
    for column in columns:
        modifier = column[3] if len(column) > 3 else -1
        message += struct.pack(">B", column[2]) + column[0].encode() + b"\0" + struct.pack(">Ii", column[1], modifier)
    return message


def values(items: list[bytes | str | None], *, binary: bool = False) -> bytes:
    """Return a tuple: bytes are values, None is NULL, "unchanged" a large value that was not changed."""
    message = struct.pack(">H", len(items))
    for item in items:
        if item is NULL:
            message += b"n"
        elif item == UNCHANGED:
            message += b"u"
        else:
            assert isinstance(item, bytes)
            message += (b"b" if binary else b"t") + struct.pack(">I", len(item)) + item
    return message


def insert(number: int, new: list[bytes | str | None], *, binary: bool = False) -> bytes:
    return b"I" + struct.pack(">I", number) + b"N" + values(new, binary=binary)


def update(
    number: int,
    new: list[bytes | str | None],
    *,
    key: list[bytes | str | None] | None = None,
    old: list[bytes | str | None] | None = None,
    binary: bool = False,
) -> bytes:
    message = b"U" + struct.pack(">I", number)
    if key is not None:
        message += b"K" + values(key, binary=binary)
    if old is not None:
        message += b"O" + values(old, binary=binary)
    return message + b"N" + values(new, binary=binary)


def delete(
    number: int,
    *,
    key: list[bytes | str | None] | None = None,
    old: list[bytes | str | None] | None = None,
    binary: bool = False,
) -> bytes:
    message = b"D" + struct.pack(">I", number)
    return message + (b"K" + values(key, binary=binary) if key is not None else b"O" + values(old or [], binary=binary))


def truncate(numbers: list[int], *, cascade: bool = False, restart_identity: bool = False) -> bytes:
    return (
        b"T"
        + struct.pack(">IB", len(numbers), cascade | restart_identity << 1)
        + b"".join(struct.pack(">I", n) for n in numbers)
    )


def message(prefix: str, content: bytes, *, position: int = 0, transactional: bool = True) -> bytes:
    return (
        b"M"
        + struct.pack(">Bq", transactional, position)
        + prefix.encode()
        + b"\0"
        + struct.pack(">I", len(content))
        + content
    )


def stream(*messages: bytes) -> bytes:
    return b"".join(frame(m) for m in messages)
