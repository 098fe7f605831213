"""Labels of tracked transactions on the wire, in a batch's header."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ProtocolError
from headrace.lcr.tracking import LABEL_BYTES_MAX, LABELS_PER_BATCH_MAX, Label
from protos import lcr_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["labels_from_messages", "labels_to_messages"]


def labels_to_messages(labels: Iterable[Label]) -> list[lcr_pb2.Label]:
    """Turn labels into their messages."""
    return [
        lcr_pb2.Label(
            text=label.text,
            transaction_id=label.transaction_id,
            order_scn=label.order_scn,
            commit_scn=label.commit_scn,
            rows=label.rows,
        )
        for label in labels
    ]


def labels_from_messages(messages: Sequence[lcr_pb2.Label]) -> tuple[Label, ...]:
    """Turn the messages into labels.

    Raises:
        ProtocolError: there are too many labels, or one is too long.
    """
    if len(messages) > LABELS_PER_BATCH_MAX or any(len(message.text) > LABEL_BYTES_MAX for message in messages):
        raise ProtocolError("an LCR batch has too many labels, or one that is too long", labels=len(messages))
    return tuple(
        Label(
            text=message.text,
            transaction_id=message.transaction_id,
            order_scn=message.order_scn,
            commit_scn=message.commit_scn,
            rows=message.rows,
        )
        for message in messages
    )
