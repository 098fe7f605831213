r"""How a tag stands in PostgreSQL's log: names of replication origins, and messages of users.

What a session writes while it has an origin is marked with the origin's name in the log. So a name carries the tag, and
who set it:

    headrace:<topology>/<apply process>/<server>:<tag in hexadecimal>     an apply server with a tag
    headrace:<topology>/<apply process>/<server>:null                     one without: its changes look like users'
    anything else                                                         not ours: a NULL tag

An origin belongs to one session at a time, and the server knows only so many (`max_active_replication_origins`; before
version 18 `max_replication_slots`).

A user's transaction is tagged by a logical message that it writes before its first change, with the tag as its content:

    SELECT headrace.set_tag('11')                                             where the schema `headrace` is
    SELECT pg_logical_emit_message(true, 'headrace.tag', '\x11'::bytea)      the same, at any site

The message belongs to the transaction: it ends with it, and a savepoint that is rolled back takes it back. It needs no
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
    """The tag an origin's name carries; None (a NULL tag) when the origin is not ours, or says that there is none.

    A name that begins like ours and does not go on like ours is a tag all the same: taking it for NULL could send
    a change in circles.
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
    """The tag that a user's message gives its transaction.

    Content that cannot be one counts as an empty tag, never as NULL.
    """
    return Tag(value=content if len(content) <= TAG_BYTES_MAX else b"")
