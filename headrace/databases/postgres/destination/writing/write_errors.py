"""What an error while rows are written means: an altered table, a refused row, or something an operator must fix."""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg

from headrace.base.errors import DatabaseError, DataError
from headrace.databases.postgres.connection import NOT_IN_STATE

__all__ = ["NO_RIGHT", "explain", "is_outdated", "is_right", "is_stale", "raise_refused", "raise_refused_at_end"]

# Where a statement was made for a table that was altered since, the server finds one of these. It finds them too where
# the table is as it was: a function of the destination calls what it does not find, or a value names what is not there.
_STALE_STATES = frozenset({"42703", "42P01", "42804", "42883", "42704", "42846", "428C9"})

# Refuse a statement, or a value, of one table: another one's is not refused for it.
_OF_ONE_TABLE = frozenset({"42", "3F"})
# Of statements alone, though the server does not point into them: a column that takes no value, an object of another
# kind.
_OF_STATEMENTS = frozenset({"428C9", "42809"})
_FUNCTION = re.compile(r"(PL/\S+|SQL) function .*", re.MULTILINE)
_NAMELESS = (
    ": a function of the destination (of a trigger, a rule, an index, a check, a default) names what is not there, or"
    " without its schema (apply's sessions have an empty search_path). Correct it there, for example with ALTER"
    " FUNCTION ... SET search_path = ..."
)
_OTHER_FIELDS = (
    ": {types} has other fields here than at the source. Alter it here as it was altered there: ALTER"
    " TYPE {alter} ADD ATTRIBUTE (or DROP ATTRIBUTE) ..."
)
_NOT_HERE = (
    ": a value names what only the source has (regclass, regtype, ...). Create it here; or, if it is gone"
    " there too, edit the row or delete the transaction"
)
_RIGHT_ELSEWHERE = (
    "grant the role that applies what this names, or BYPASSRLS where row security refuses the row (of the table itself"
    " it lacks nothing: a trigger, a rule or a function of the destination needs it)"
)
_OUR_DEFECT = (
    ": a statement of Headrace is wrong, which is a defect of Headrace: report it, with the table's"
    " definition. Other tables are not concerned"
)

# What is wrong with the session, the role, the server or a statement of ours, and not with the row: an operator must
# act, and no row may enter the error queue for it. Every other class that is not the environment's fault refuses the
# row: a trigger or a function of the destination (09, 27, 2F, 38, 39, P0, HV, or a state its author made up), a limit
# (54: an index entry too long), or something the destination does not do (0A: truncating what others refer to).
_OPERATOR_CLASSES = frozenset(
    {"0L", "0P", "24", "25", "26", "28", "2B", "2D", "34", "3B", "3D", "3F", "42", "F0", "XX"}
)
NO_RIGHT = "42501"
# "connection does not exist": the word of dblink, or of a trigger's author, about a name that is not known. A server
# never says it of a session, and a session that is lost says nothing, or something FATAL.
_NO_CONNECTION = "08003"
# Functions of the server that speak of the session's own past, or of its own transaction, though the class (55) is
# otherwise the environment's: a sequence that this session has not used, and a table whose deferred triggers are still
# to run. It is the same at each attempt.
_OF_THE_TRANSACTION = frozenset({"currval_oid", "lastval", "CheckTableNotInUse"})


def is_stale(error: DatabaseError) -> bool:
    """Whether the table may not be as it was described."""
    return error.context.get("sqlstate") in _STALE_STATES


def is_outdated(error: DatabaseError) -> bool:
    """Whether a statement is refused only because it was prepared for a table whose columns have other types, or are others, by now."""
    return (
        isinstance(error.__cause__, psycopg.errors.FeatureNotSupported)
        and error.__cause__.diag.source_function == "RevalidateCachedQuery"
    )


def is_right(error: DatabaseError) -> bool:
    """Whether a right is missing, or row security refuses a row."""
    return error.context.get("sqlstate") == NO_RIGHT


def explain(
    error: DatabaseError, names: Sequence[str], command: str, types: Sequence[str] = (), grants: Sequence[str] = ()
) -> None:
    """Say of an error which tables it is about, and raise what it means where its own class does not say so.

    Args:
        error: caught while rows were written, of tables that are as they were described; keeps its context.
        names: tables as `owner.name`.
        command: what was done to them.
        types: types of the tables' columns that are not built in, quoted and qualified.
        grants: statements that give the role what it lacks for these tables, where a right is missing.

    Raises:
        DataError: the destination refused the rows, or the statement that writes them: no other table is at fault.
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
    """As `raise_refused`, of an error at the end of a transaction, where only what is deferred runs: triggers."""
    state = str(error.context.get("sqlstate", ""))
    if state[:2] in _OF_ONE_TABLE:
        raise _refused(
            error, f"{error.message}{_missing_right(error) if state == NO_RIGHT else _in_function(error)}"
        ) from error
    raise_refused(error)


def _missing_right(error: DatabaseError, grants: Sequence[str] = ()) -> str:
    """What is to be granted."""
    return f"{_functions(error)}: {' '.join(grants) or _RIGHT_ELSEWHERE}"


def _why(error: DatabaseError, state: str, command: str, types: Sequence[str]) -> str:
    """What a class means that a statement, a function and a value can all be refused with.

    The server says where it was.
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
    # The server points into the statement where it refuses the statement itself. It does not in statements that have no
    # plan.
    is_value = (
        not said.statement_position
        and command != "TRUNCATE"
        and not (said.context or "").startswith("COPY ")
        and state not in _OF_STATEMENTS
    )
    return _NOT_HERE if is_value else _OUR_DEFECT


def _in_function(error: DatabaseError) -> str:
    """The functions in which an error occurred, and what to do."""
    where = _functions(error)
    return f"{where}: {error.hint}" if "search_path" in error.hint else f"{where}{_NAMELESS}"


def _functions(error: DatabaseError) -> str:
    """The functions in which an error occurred, innermost first, as the server names them.

    Other lines of its context may have values.
    """
    said = error.__cause__.diag.context if isinstance(error.__cause__, psycopg.Error) else None
    lines = [line for line in (said or "").splitlines() if _FUNCTION.match(line)]
    return f" in {', called by '.join(lines)}" if lines else ""


def _refused(error: DatabaseError, message: str) -> DataError:
    refused = DataError(message, hint=error.hint, **error.context)
    refused.detail = error.detail
    return refused


def raise_refused(error: DatabaseError) -> None:
    """Raise a `DataError` when the destination refused what was written, whatever class it gave as the reason."""
    state = str(error.context.get("sqlstate", ""))
    if (type(error) is DatabaseError and state and state[:2] not in _OPERATOR_CLASSES) or _is_the_row_s(error, state):
        raise _refused(error, error.message) from error


def _is_the_row_s(error: DatabaseError, state: str) -> bool:
    """Whether an error whose class is the environment's is one of the rows all the same, and comes again with them for ever.

    A row for which a function of the destination, for example of a trigger, finds something "not in prerequisite state"
    finds it so each time. The server says where only if a function failed, and says that itself of a table that is
    published and has no replica identity, also of one that only a trigger writes: every row waits until the operator
    gives it one.
    """
    if not isinstance(error.__cause__, psycopg.Error):
        return False
    said = error.__cause__.diag
    if (said.severity_nonlocalized or said.severity) != "ERROR":
        return False
    if state == NOT_IN_STATE and said.context and said.source_function != "CheckCmdReplicaIdentity":
        return True
    return state == _NO_CONNECTION or said.source_function in _OF_THE_TRANSACTION
