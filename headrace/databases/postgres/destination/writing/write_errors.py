"""Meaning of errors during writes: an altered table, a refused row, or a fault that an operator must fix."""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg

from headrace.base.errors import DatabaseError, DataError
from headrace.databases.postgres.connection import NOT_IN_STATE

__all__ = [
    "NO_RIGHT",
    "explain",
    "is_of_the_transaction",
    "is_outdated",
    "is_right",
    "is_stale",
    "raise_refused",
    "raise_refused_at_end",
]

# The server reports these states for a statement made for a table that was altered since. It also reports them for an
# unchanged table, when a function of the destination calls, or a value names, an object that does not exist.
_STALE_STATES = frozenset({"42703", "42P01", "42804", "42883", "42704", "42846", "428C9"})

# Classes that refuse a statement or value of one table, and say nothing about other tables.
_OF_ONE_TABLE = frozenset({"42", "3F"})
# States that only statements cause, although the server gives no position: a column that accepts no value, an object of
# another kind.
_OF_STATEMENTS = frozenset({"428C9", "42809"})
_FUNCTION = re.compile(r"(PL/\S+|SQL) function .*", re.MULTILINE)
_NAMELESS = (
    ": a function of the destination (of a trigger, a rule, an index, a check, a default) references a missing or"
    " unqualified object (apply's sessions have an empty search_path). Correct it there, for example with ALTER"
    " FUNCTION ... SET search_path = ..."
)
_OTHER_FIELDS = (
    ": {types} has different fields here and at the source. Alter it here as it was altered there: ALTER"
    " TYPE {alter} ADD ATTRIBUTE (or DROP ATTRIBUTE) ..."
)
_NOT_HERE = (
    ": a value names an object that only the source has (regclass, regtype, ...). Create it here; or, if the source"
    " has dropped it, too, edit the row or delete the transaction"
)
_RIGHT_ELSEWHERE = (
    "grant the role that applies what this names, or BYPASSRLS if row security refuses the row (the role has"
    " all rights on the table itself: a trigger, a rule or a function of the destination needs more)"
)
_OUR_DEFECT = (
    ": a statement of Headrace is wrong, which is a defect of Headrace: report it, with the table's"
    " definition. Other tables are not affected"
)

# Faults of the session, the role, the server or a Headrace statement, not of the row: an operator must act, and no row
# may enter the error queue for them. Every other class that is not the environment's fault refuses the row. Such
# errors come from a trigger or a function of the destination (09, 27, 2F, 38, 39, P0, HV, or a state of its author), a
# limit (54: an index entry is too long), or an unsupported operation (0A: truncating a referenced table).
_OPERATOR_CLASSES = frozenset(
    {"0L", "0P", "24", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "42", "F0", "XX"}
)
NO_RIGHT = "42501"
# "connection does not exist": dblink or a trigger raises it for an unknown name. A server never reports it for a
# session; a lost session gives no error, or a FATAL one.
_NO_CONNECTION = "08003"
# Functions of the server whose errors concern the session's past or its transaction: a sequence that this session has
# not used, and a table with pending deferred triggers. A retry gives the same error, although class 55 is otherwise the
# environment's.
_OF_THE_TRANSACTION = frozenset({"currval_oid", "lastval", "CheckTableNotInUse"})


def is_stale(error: DatabaseError) -> bool:
    """Return whether the table's description may be stale."""
    return error.context.get("sqlstate") in _STALE_STATES


def is_outdated(error: DatabaseError) -> bool:
    """Return whether the server refuses a prepared statement only because the table's columns have changed since."""
    return (
        isinstance(error.__cause__, psycopg.errors.FeatureNotSupported)
        and error.__cause__.diag.source_function == "RevalidateCachedQuery"
    )


def is_of_the_transaction(error: DatabaseError) -> bool:
    """Return whether an error concerns what the session or its transaction did before, so that a retry gives it again."""
    return isinstance(error.__cause__, psycopg.Error) and error.__cause__.diag.source_function in _OF_THE_TRANSACTION


def is_right(error: DatabaseError) -> bool:
    """Return whether a right is missing, or row security refuses a row."""
    return error.context.get("sqlstate") == NO_RIGHT


def explain(
    error: DatabaseError, names: Sequence[str], command: str, types: Sequence[str] = (), grants: Sequence[str] = ()
) -> None:
    """Add the tables to an error, and raise a `DataError` when the error means refused rows.

    Args:
        error: error from a write to tables whose descriptions are up to date; keeps its context.
        names: names of the tables, as `owner.name`.
        command: the command on the tables.
        types: user-defined types of the tables' columns, quoted and qualified.
        grants: statements that grant the missing rights on these tables, if any.

    Raises:
        DataError: the destination refused the rows, or the statement that writes them; other tables are not affected.
    """
    named = ", ".join(names)
    error.context["table"], error.context["command"] = named, command
    state = str(error.context.get("sqlstate", ""))
    if state == NO_RIGHT:
        raise _refused(error, f"{command} of {named}: {error.message}{_missing_right(error, grants)}") from error
    if state[:2] in _OF_ONE_TABLE:
        raise _refused(error, f"{command} of {named}: {error.message}{_why(error, state, command, types)}") from error
    raise_refused(error)


def raise_refused_at_end(error: DatabaseError) -> None:
    """As `raise_refused`, for an error at the end of a transaction, where only deferred triggers run."""
    state = str(error.context.get("sqlstate", ""))
    if state[:2] in _OF_ONE_TABLE:
        raise _refused(
            error, f"{error.message}{_missing_right(error) if state == NO_RIGHT else _in_function(error)}"
        ) from error
    raise_refused(error)


def _missing_right(error: DatabaseError, grants: Sequence[str] = ()) -> str:
    """Return the functions in which the error occurred, and what to grant."""
    return f"{_functions(error)}: {' '.join(grants) or _RIGHT_ELSEWHERE}"


def _why(error: DatabaseError, state: str, command: str, types: Sequence[str]) -> str:
    """Explain an error class that can refuse a statement, a function or a value.

    The server's diagnostics tell which of them failed.
    """
    said = error.__cause__.diag if isinstance(error.__cause__, psycopg.Error) else None
    if said is None:
        return _OUR_DEFECT
    if said.internal_query or _FUNCTION.search(said.context or ""):
        return f"{_in_function(error)}"
    if said.source_function == "record_recv":
        return _OTHER_FIELDS.format(
            types=" or ".join(types) or "a composite type", alter=types[0] if len(types) == 1 else "..."
        )
    # The server gives a position when it refuses the statement itself, except for statements without a plan.
    is_value = (
        not said.statement_position
        and command != "TRUNCATE"
        and not (said.context or "").startswith("COPY ")
        and state not in _OF_STATEMENTS
    )
    return _NOT_HERE if is_value else _OUR_DEFECT


def _in_function(error: DatabaseError) -> str:
    """Return the functions in which an error occurred, and the fix."""
    where = _functions(error)
    return f"{where}: {error.hint}" if "search_path" in error.hint else f"{where}{_NAMELESS}"


def _functions(error: DatabaseError) -> str:
    """Return the functions in which an error occurred, innermost first, as the server names them.

    Other lines of the error's context are dropped, because they may contain values.
    """
    said = error.__cause__.diag.context if isinstance(error.__cause__, psycopg.Error) else None
    lines = [line for line in (said or "").splitlines() if _FUNCTION.match(line)]
    return f" in {', called by '.join(lines)}" if lines else ""


def _refused(error: DatabaseError, message: str) -> DataError:
    refused = DataError(message, hint=error.hint, **error.context)
    refused.detail = error.detail
    return refused


def raise_refused(error: DatabaseError) -> None:
    """Raise a `DataError` when the destination refused the written data, whatever the error class."""
    state = str(error.context.get("sqlstate", ""))
    if (type(error) is DatabaseError and state and state[:2] not in _OPERATOR_CLASSES) or _is_the_row_s(error, state):
        raise _refused(error, error.message) from error


def _is_the_row_s(error: DatabaseError, state: str) -> bool:
    """Return whether an error of an environment class is caused by the row, so that every retry fails, too.

    When a function of the destination, such as a trigger's, finds something "not in prerequisite state" for a row, it
    does so at each attempt. The server gives a context only if a function failed. One case is different: a published
    table without a replica identity, even if only a trigger writes it. Then every row waits until the operator sets one.
    """
    if not isinstance(error.__cause__, psycopg.Error):
        return False
    said = error.__cause__.diag
    if (said.severity_nonlocalized or said.severity) != "ERROR":
        return False
    if state == NOT_IN_STATE and said.context and said.source_function != "CheckCmdReplicaIdentity":
        return True
    return state == _NO_CONNECTION or is_of_the_transaction(error)
