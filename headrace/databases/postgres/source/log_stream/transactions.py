"""Transactions of the log in their source database: whether they are visible, and their 64-bit numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

__all__ = ["are_visible", "whole_number"]

_HALF_ROUND = 1 << 31  # of the transaction numbers in the log, which have 32 bits


def are_visible(connection: psycopg.Connection[Any], transactions: Collection[int]) -> bool:
    """Whether every statement from now on sees the effects of some transactions that are committed in the log.

    Args:
        connection: to the source, without a transaction.
        transactions: their 32-bit numbers, as the log has them.
    """
    if not transactions:
        return True
    end, running = _snapshot(connection)
    whole = {_nearest(number, end) for number in transactions}
    return all(number < end for number in whole) and whole.isdisjoint(running)


def whole_number(connection: psycopg.Connection[Any], transaction: int) -> int:
    """Return the 64-bit number of a transaction.

    Args:
        connection: to the source.
        transaction: its 32-bit number, as the log has it.
    """
    return _nearest(transaction, _snapshot(connection)[0])


def _snapshot(connection: psycopg.Connection[Any]) -> tuple[int, set[int]]:
    """Return the first number that had not ended yet, and the running ones below it."""
    row = connection.execute(
        "SELECT pg_snapshot_xmax(now)::text::int8, ARRAY(SELECT running::text::int8 FROM pg_snapshot_xip(now) AS"
        " running) FROM pg_current_snapshot() AS now"
    ).fetchone()
    assert row is not None
    return int(row[0]), set(row[1])


def _nearest(number: int, end: int) -> int:
    """Return the nearest number to `end` with these 32 bits: the log's transactions are never 2^31 numbers away."""
    return end + (number - end + _HALF_ROUND) % (2 * _HALF_ROUND) - _HALF_ROUND
