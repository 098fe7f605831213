"""Every error this system raises on purpose.

    HeadraceError
    +-- ConfigError              the topology or a command is wrong
    +-- RuleError                a rule condition is wrong
    +-- DatabaseError            a database refused a statement
    |   +-- DatabaseUnavailable  not reachable, or the outcome is unknown: call again
    |   +-- DataError            the database refused the data itself (SQLSTATE classes 21, 22, 23, 44)
    |   +-- DestinationRestarted the destination may have lost commits since this apply process began: begin again
    |   +-- LogGone              the redo or the slot no longer has the SCN that is needed
    |   +-- UnsupportedType      a type that cannot be replicated
    |   +-- RunsElsewhere        another copy of the topology uses this database
    +-- RedoError                a redo segment is damaged or missing
    +-- CaptureError
    +-- QueueError
    +-- PropagationError
    +-- ApplyError
    |   +-- ConflictError        an unresolved row conflict
    |   +-- HandlerError
    |   +-- FencedError          a newer incarnation of this apply process exists
    |   +-- UnfitTableError      the destination table does not fit the LCR yet: apply waits for an ALTER
    +-- ProtocolError            the peer speaks another version, or broke the protocol
    |   +-- NotAdmitted          the certificate or the topology does not admit the caller here
    |   +-- RateExceeded         the caller sends far more messages or calls than any component does
    +-- BugError                 cannot happen; a defect of Headrace

`WouldBlock`, back-pressure and the end of the log are not errors.
"""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any, ClassVar

__all__ = [
    "COPY_ONE_AGAIN",
    "COPY_THE_TABLE",
    "INSTANTIATE_AGAIN",
    "LATER_BACKUP",
    "LOST_AT_SOURCE",
    "NOT_REPLICATED",
    "ApplyError",
    "BugError",
    "CaptureError",
    "ConfigError",
    "ConflictError",
    "DataError",
    "DatabaseError",
    "DatabaseUnavailable",
    "DestinationRestarted",
    "FencedError",
    "HandlerError",
    "LogGone",
    "NotAdmitted",
    "PropagationError",
    "ProtocolError",
    "QueueError",
    "RateExceeded",
    "RedoError",
    "Retry",
    "RuleError",
    "RunsElsewhere",
    "HeadraceError",
    "UnfitTableError",
    "UnsupportedType",
    "WHERE_OTHERS_WRITE",
    "WouldBlock",
    "counted",
    "printable",
]


# The fix when transactions are lost for good; part of hints.
INSTANTIATE_AGAIN = (
    "`headrace down --purge --keep-servers`, empty the replicated tables at the destinations (where sites write to each"
    " other, at all but the one whose rows stay), then `headrace up`: the tables are copied again"
)
# What an apply process answers about a table that it does not replicate. Callers that ask several apply processes
# compare with it.
NOT_REPLICATED = "does not replicate it"
# The fix where error transactions of a table can never be executed. Deleting one would lose its changes to other
# tables.
COPY_THE_TABLE = (
    "`headrace copy FILE TABLE` with that table, which deletes the error transactions that it makes obsolete;"
    " then `headrace errors execute FILE --all`, which writes what others have of other tables"
)
# Follows COPY_THE_TABLE: `headrace copy` refuses a table that other sites write.
WHERE_OTHERS_WRITE = (
    "Where others write that table, too, it is not copied: write what `headrace errors show FILE N` has of other"
    " tables, then `headrace errors delete FILE N` what failed, `headrace verify` the table, and the fix that it prints"
)
# Precedes INSTANTIATE_AGAIN: the rows of a site that was restored to an earlier state are older than those of the
# others.
LOST_AT_SOURCE = "the destinations may hold transactions that the source lost"
LATER_BACKUP = "Or restore a later backup, then start its apply process: `headrace start FILE apply:NAME`"
# Like INSTANTIATE_AGAIN, for one destination while the others keep running. `headrace.console.remedies` has the words
# for a destination that also writes to other sites.
COPY_ONE_AGAIN = (
    "the other destinations keep running. Take everything that goes to this one or comes from it out of the topology"
    " file, leave its site there and run `headrace up`, empty its replicated tables, put it back and run `headrace up`:"
    f" its tables are copied again. {LATER_BACKUP}"
)


class Retry(Enum):
    """How a supervisor may react to an error."""

    TIMED = "timed"  # retry after retry_delay_s
    MANUAL = "manual"  # an operator must act first; `hint` says what to do
    NEVER = "never"  # a bug or a refused input


class WouldBlock(Exception):
    """Nothing to do now; the caller calls again when it is woken."""


class HeadraceError(Exception):
    """Root of every error this system raises on purpose. Guaranteed picklable.

    Args:
        message: what is wrong and where, one sentence, no row values.
        hint: what to do about it.
        context: names, SCNs and counts, never row values.
    """

    code: ClassVar[str] = "HDR-0000"
    fix: ClassVar[str] = ""
    """What an operator does about errors of this class; the hint of one error is more exact."""
    retry: ClassVar[Retry] = Retry.NEVER
    is_finding: ClassVar[bool] = False
    """A finding of `check`, which must be fixed in the file or in a database: exit code 1."""

    def __init__(self, message: str, *, hint: str = "", **context: str | int) -> None:
        super().__init__(message)
        self.hint, self.context = hint, context

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray rebuilds exceptions as cls(*args); keyword arguments would be lost without this.
        context: dict[str, Any] = dict(self.context)
        return functools.partial(type(self), hint=self.hint, **context), self.args

    @property
    def message(self) -> str:
        """The message without hint and context."""
        return str(self.args[0])

    @property
    def message_and_hint(self) -> str:
        """Message and hint in one text, for callers without a field for the hint."""
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def described(self) -> dict[str, str]:
        """Return the error as JSON-able strings, for status, logs and other processes."""
        return {
            "error": type(self).__name__,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "retry": self.retry.value,
        }


class ConfigError(HeadraceError):
    """The topology or a command line is wrong; nothing was done."""

    code = "HDR-1000"
    fix = "Correct the topology file or the command as the hint says, then repeat the command."


class RuleError(HeadraceError):
    """A rule's condition is invalid."""

    code = "HDR-1100"
    fix = "Correct the rule's condition in the topology file."


class DatabaseError(HeadraceError):
    """A database refused a statement for a reason that is neither data nor availability.

    `detail` is the database's additional text. It may quote rows, so only the error queue shows it: no message contains
    it, and it does not leave the process with the error.
    """

    code = "HDR-2000"
    fix = (
        "Correct what the database's message names, usually a right or a setting; `headrace check FILE` names"
        " missing rights."
    )
    retry = Retry.MANUAL
    detail: str = ""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached, is out of a resource, or the outcome is unknown: call again.

    Covers SQLSTATE classes 08, 40, 53, 55, 57, 58 and broken connections. Never goes to the error queue.
    """

    code = "HDR-2001"
    fix = (
        "Nothing, if the database comes back: Headrace retries. Otherwise start the database, or free the"
        " resource that its message names."
    )
    retry = Retry.TIMED


class DataError(DatabaseError):
    """The database refused the data itself (SQLSTATE classes 21, 22, 23, 44); candidates for the error queue."""

    code = "HDR-2002"
    fix = (
        "Correct the destination's constraint or the row: `headrace errors show FILE N`, then `headrace errors"
        " execute FILE N`."
    )
    retry = Retry.NEVER


class LogGone(DatabaseError):
    """The log no longer has the required SCN."""

    code = "HDR-2003"
    fix = "Follow the hint: set the tables up again as it says, or restore the redo that is missing."
    retry = Retry.MANUAL


class DatabaseSetBack(LogGone):
    """The source database lacks part of what was read from its log.

    The source was restored to an earlier state, and its log diverged.
    """

    code = "HDR-2007"
    fix = (
        "Follow the hint: run `headrace down FILE --purge --keep-servers`, empty the tables that it names, and run"
        " `headrace up FILE`."
    )


class CapturedNoMore(LogGone):
    """What defines the captured changes at the source was dropped, altered or recreated: the log lacks changes."""

    code = "HDR-2008"
    fix = (
        "Follow the hint: changes are missing, so all replicated tables are set up again (`headrace down FILE --purge"
        " --keep-servers`, empty tables at the destinations, `headrace up FILE`)."
    )


class DestinationRestarted(DatabaseError):
    """The destination's server was restarted, failed over or restored since this apply process began.

    Earlier commits may be lost. The apply process begins again: it reads the destination's state, and the queue resends
    what is missing there.
    """

    code = "HDR-2005"
    fix = "Nothing: the apply process reads the destination's state and begins again."
    retry = Retry.TIMED


class UnsupportedType(DatabaseError):
    """A column's type cannot be replicated."""

    code = "HDR-2004"
    fix = "Leave out the column with a transformation, or the table with a rule, then run `headrace up FILE`."


class RunsElsewhere(DatabaseError):
    """Another copy of the topology, in another folder or on another machine, uses this database."""

    code = "HDR-2006"
    fix = (
        "End one of the two copies: `headrace down FILE` in its folder; if its machine is gone for good, `headrace up"
        " FILE --take-over` here."
    )
    retry = Retry.MANUAL


class RedoError(HeadraceError):
    """A redo segment is damaged, missing, or cannot be written."""

    code = "HDR-3000"
    fix = "Follow the hint: restore the segment from an archive, or set the tables up again as it says."
    retry = Retry.MANUAL


class CaptureError(HeadraceError):
    """A capture process cannot continue."""

    code = "HDR-3100"
    fix = "Correct what the message names, then `headrace start FILE capture:NAME`."
    retry = Retry.MANUAL


class TableLeftRules(CaptureError):
    """A captured table was renamed, and no rule takes its changes any more: an operator must decide about them."""

    code = "HDR-3101"
    fix = (
        "To keep replicating the table, add its new name to the rules and rename it at the destinations; otherwise keep"
        " the rules as they are. Then run `headrace up FILE`."
    )


class QueueError(HeadraceError):
    """A queue refused an operation."""

    code = "HDR-4000"
    fix = (
        "Nothing, if it is a restart: the caller retries. Otherwise do what the hint says, usually to free disk space."
    )
    retry = Retry.TIMED


class PropagationError(HeadraceError):
    """A propagation cannot reach its destination."""

    code = "HDR-4100"
    fix = "Nothing, if the network comes back: the propagation retries. Otherwise correct the address or the firewall."
    retry = Retry.TIMED


class ApplyError(HeadraceError):
    """An apply process cannot continue."""

    code = "HDR-5000"
    fix = "Correct what the message names, then `headrace start FILE apply:NAME`."
    retry = Retry.MANUAL


class ConflictError(ApplyError):
    """An unresolved row conflict; the context has its `conflict_type`."""

    code = "HDR-5001"
    fix = (
        "Decide about the row: `headrace errors show FILE N`, then edit, execute or delete; a conflict handler"
        " decides by itself."
    )


class HandlerError(ApplyError):
    """A user's handler raised."""

    code = "HDR-5002"
    fix = "Correct the handler, run `headrace up FILE`, then `headrace errors execute FILE N`."


class FencedError(ApplyError):
    """A newer incarnation of this apply process holds a higher epoch; this one must end."""

    code = "HDR-5003"
    fix = "Nothing: the newer incarnation applies the changes."
    retry = Retry.NEVER


class UnfitTableError(ApplyError):
    """A destination table does not fit the LCRs yet; `hint` is the missing ALTER.

    With `altered` in the context, the table differs from its last description, and may fit when it is described again.
    """

    code = "HDR-5004"
    fix = "Run the ALTER of the hint at the destination; the apply process continues by itself."
    retry = Retry.TIMED


class ProtocolError(HeadraceError):
    """The peer speaks another protocol version, or broke the protocol."""

    code = "HDR-6000"
    fix = "Run the same version of Headrace at every site."
    retry = Retry.TIMED


class NotAdmitted(ProtocolError):
    """The certificate does not match the caller's site, or the topology does not admit the caller here.

    Retried: both can change at run time, the certificate on disk and the topology with `headrace up`.
    """

    code = "HDR-6001"
    fix = (
        "Follow the hint: give the site its own certificate (`headrace certs`), or run `headrace up FILE` if a component"
        " still runs an older file. Admit a caller in the file only if you know it."
    )


class RateExceeded(ProtocolError):
    """The caller, or its site, sends far more messages or calls than any component does.

    Retried: the rate may drop.
    """

    code = "HDR-6002"
    fix = "Find out who calls: `headrace status FILE` names the site."


class BugError(HeadraceError):
    """Cannot happen; a defect of Headrace."""

    code = "HDR-9000"
    fix = "Report it, with the log: it is a defect of Headrace."


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, for a message: "1 problem", "2 problems".

    Args:
        count: the number.
        noun: singular noun; its plural ends with s.
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def printable(text: str, characters_max: int = 300) -> str:
    """Return text of an unidentified caller for a message: truncated, with control characters escaped.

    Args:
        text: anything.
        characters_max: bound of the length; names are far shorter.
    """
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text[:characters_max]
    )
