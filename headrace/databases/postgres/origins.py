r"""Tags in PostgreSQL's log: names of replication origins, and users' messages.

What a session writes while it has an origin is marked with the origin's name in the log. So the name carries the tag
and its author:

    headrace:<topology>/<apply process>/<server>:<tag in hexadecimal>     an apply server with a tag
    headrace:<topology>/<apply process>/<server>:null                     one without a tag: its changes look like users'
    any other name                                                        not ours: a NULL tag

An origin belongs to one session at a time, and the number of origins of a server is limited
(`max_active_replication_origins`; before version 18 `max_replication_slots`).

A user's transaction is tagged by a logical message that it writes before its first change, with the tag as its content:

    SELECT headrace.set_tag('11')                                             where the schema `headrace` is
    SELECT pg_logical_emit_message(true, 'headrace.tag', '\x11'::bytea)      the same, at any site

The message belongs to the transaction: its effect ends with it, and rolling back a savepoint removes it. It needs no
origin, so any number of sessions may tag, with any tags.
"""

from __future__ import annotations

from headrace.base.errors import ConfigError
from headrace.lcr.tags import TAG_BYTES_MAX, Tag

__all__ = ["TAG_PREFIX", "origin_name", "tag_of_message", "tag_of_origin"]

TAG_PREFIX = "headrace.tag"  # of the messages by which users tag their transactions

_PREFIX = "headrace:"
_NO_TAG = "null"
_NAME_BYTES_MAX = 512  # PostgreSQL 18 refuses longer names


def origin_name(topology: str, apply: str, server: int, tag: bytes) -> str:
    """Name of the replication origin that marks an apply server's changes in the log.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        server: number of the apply server.
        tag: of the changes; empty: NULL.

    Raises:
        ConfigError: it would be longer than PostgreSQL allows.
    """
    name = f"{_PREFIX}{topology}/{apply}/{server}:{tag.hex() or _NO_TAG}"
    length = len(name.encode())
    if length > _NAME_BYTES_MAX:
        raise ConfigError(
            f"the replication origin of apply process {apply} would have a name of {length} bytes,"
            f" PostgreSQL allows {_NAME_BYTES_MAX}",
            hint="use a shorter tag or shorter names",
        )
    return name


def tag_of_origin(name: str) -> Tag | None:
    """Return the tag in an origin's name; None (a NULL tag) when the origin is not ours, or names no tag.

    A name that begins like ours but continues differently still gives a tag: NULL could make a change circulate.
    """
    if not name.startswith(_PREFIX):
        return None
    where, _, tag_text = name[len(_PREFIX) :].rpartition(":")
    topology, _, apply = where.rpartition("/")[0].partition("/")
    if tag_text == _NO_TAG:
        return None
    try:
        return Tag(value=bytes.fromhex(tag_text), topology=topology, apply=apply)
    except ValueError:
        return Tag(value=b"", topology=topology, apply=apply)


def tag_of_message(content: bytes) -> Tag:
    """Return the tag that a user's message gives its transaction.

    Invalid content counts as an empty tag, never as NULL.
    """
    return Tag(value=content if len(content) <= TAG_BYTES_MAX else b"")
