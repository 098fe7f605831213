"""Tags: the marks of changes made by apply processes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_APPLY_TAG", "TAG_BYTES_MAX", "Tag"]

TAG_BYTES_MAX = 2000  # the manuals' bound on a tag

DEFAULT_APPLY_TAG = b"\x00"
"""Default tag of an apply process: any value that is not NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tag:
    """The tag of one transaction, and who set it.

    Args:
        value: the tag's bytes, at most `TAG_BYTES_MAX`.
        topology: the topology whose apply process set it; empty when a user set it.
        apply: the apply process that set it; empty when a user set it.

    Source: Oracle Streams Replication Administrator's Guide, "Oracle Streams Tags".
    """

    value: bytes
    topology: str = ""
    apply: str = ""

    def __post_init__(self) -> None:
        if len(self.value) > TAG_BYTES_MAX:
            message = f"a tag has at most {TAG_BYTES_MAX} bytes, this one {len(self.value)}"
            raise ValueError(message)
