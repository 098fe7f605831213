"""What an error while rows are written means: an altered table, a refused row, or something an operator must fix."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from databases.postgres.connection import NOT_IN_STATE
from streams.errors import DatabaseError, DataError, UnfitTableError

__all__ = ["NO_RIGHT", "explain", "is_outdated", "is_stale", "raise_refused"]

# The table is not what its description says: it was altered meanwhile.
_STALE_STATES = frozenset({"42703", "42P01", "42804", "42883", "42704", "42846", "428C9"})

# What is wrong with the session, the role, the server or a statement of ours, and not with the row: an operator must act, and
# no row may enter the error queue for it. Every other class that is not the environment's fault refuses the row: a trigger
# or a function of the destination (09, 27, 2F, 38, 39, P0, HV, or a state its author made up), a limit (54: an index entry
# too long), or something the destination does not do (0A: truncating what others refer to).
_OPERATOR_CLASSES = frozenset({"0L", "0P", "24", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "42", "F0", "XX"})
NO_RIGHT = "42501"
# "connection does not exist": the word of dblink, or of a trigger's author, about a name that is not known. A server never says it of a session, and a session that
# is lost says nothing, or something FATAL.
_NO_CONNECTION = "08003"
# Functions of the server that speak of the session's own past, or of its own transaction, though the class (55) is otherwise the environment's: a sequence
# that this session has not used, and a table whose deferred triggers are still to run. It is the same at each attempt.
_OF_THE_TRANSACTION = frozenset({"currval_oid", "lastval", "CheckTableNotInUse"})


def is_stale(error: DatabaseError) -> bool:
    """Whether the table is not as it was described."""
    return error.context.get("sqlstate") in _STALE_STATES


def is_outdated(error: DatabaseError) -> bool:
    """Whether a statement is refused only because it was prepared for a table whose columns have other types, or are others, by now."""
    return isinstance(error.__cause__, psycopg.errors.FeatureNotSupported) and error.__cause__.diag.source_function == "RevalidateCachedQuery"


def explain(error: DatabaseError, names: Sequence[str], command: str) -> None:
    """Say of an error which tables it is about, and raise what it means where its own class does not say so.

    Args:
        error: caught while rows were written; keeps its context.
        names: tables as `owner.name`.
        command: what was done to them.

    Raises:
        UnfitTableError: a table was altered meanwhile: describe it again.
        DataError: the destination refused the rows.
    """
    named = ", ".join(names)
    error.context["table"], error.context["command"] = named, command
    if is_stale(error):
        raise UnfitTableError(
            f"the destination table {named} is not as it was described: {error.message}",
            hint="it is described again at the next attempt", table=named, altered="meanwhile",
        ) from error
    if error.context.get("sqlstate") == NO_RIGHT and not error.hint:
        error.hint = (
            f"grant the role of the connection string what this names: `headrace check` prints the GRANT for {named}, except where a trigger or a function"
            " of the destination needs it; then `headrace start` the apply process"
        )
    raise_refused(error)


def raise_refused(error: DatabaseError) -> None:
    """Raise a `DataError` when the destination refused what was written, whatever class it gave as the reason."""
    state = str(error.context.get("sqlstate", ""))
    if (type(error) is DatabaseError and state and state[:2] not in _OPERATOR_CLASSES) or _is_the_row_s(error, state):
        refused = DataError(error.message, hint=error.hint, **error.context)
        refused.detail = error.detail
        raise refused from error


def _is_the_row_s(error: DatabaseError, state: str) -> bool:
    """Whether an error whose class is the environment's is one of the rows all the same, and comes again with them for ever.

    A row for which a function of the destination, for example of a trigger, finds something "not in prerequisite state" finds it so each time. The server
    says where only if a function failed, and says that itself of a table that is published and has no replica identity, also of one that only a trigger
    writes: every row waits until the operator gives it one.
    """
    if not isinstance(error.__cause__, psycopg.Error):
        return False
    said = error.__cause__.diag
    if (said.severity_nonlocalized or said.severity) != "ERROR":
        return False
    if state == NOT_IN_STATE and said.context and said.source_function != "CheckCmdReplicaIdentity":
        return True
    return state == _NO_CONNECTION or said.source_function in _OF_THE_TRANSACTION
