"""The views of a destination, column by column, in the manuals' words, also as an apply process's own description.

One definition serves both: a connector creates the views from it
(`headrace.databases.postgres.destination.records.views`), and `headrace status --json` has the same rows as `views` of
each apply process, under the views' names and columns. `Column.said` is the path of the value in the description:

    topology, apply_name, epoch, observed_time     of the driver that wrote the description
    configuration                                  `spark_apply.driver.described.configuration_of`: constant while the driver runs
    state                                          `spark_apply.driver.described.state_of`: as the driver last wrote it for the views
    progress                                       what the driver knows to be durable
    error_transactions, error_messages             of the error queue, which the caller of `error_rows` provides

This needs no query to the destination.

Source: Oracle Streams Concepts and Administration 11.2, "Monitoring Streams Apply Processes"; Database Reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = ["ERRORS_MAX", "LEFT_OUT", "VIEWS", "Column", "View", "error_rows", "rows_said", "time_text"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OF_ERRORS = ("error_transactions", "error_messages")

ERRORS_MAX = 100
"""Number of error transactions shown per apply process: `headrace errors list --json` has all, with their values."""

LEFT_OUT = frozenset({("dba_apply_error", "failed_message"), ("dba_apply_error_messages", "message")})
"""Columns with row values, which are null in descriptions; `headrace errors list|show` has the values."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a view.

    Args:
        name: in lower case.
        meaning: its comment.
        said: path of its value in the description; empty: the column's name in the entry of the view's list.
        kind: type of the column, where `said` is a path in `configuration` or `state`; empty: text.
        constant: its value in every row.
    """

    name: str
    meaning: str
    said: str = ""
    kind: str = ""
    constant: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A view of a destination.

    Args:
        name: in lower case.
        comment: what a row is.
        columns: in order.
        each: path of the list, or of the map, with one entry per row; empty: the view has one row.
        is_said: an apply process's description contains its rows; False: only its destination has them.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    each: str = ""
    is_said: bool = True

    @property
    def needs_driver(self) -> bool:
        """Whether a driver must have described its state: the configuration alone is not enough."""
        paths = (self.each, *(column.said for column in self.columns))
        return any(path.partition(".")[0] in {"state", "progress", "epoch"} for path in paths)


_OF = (
    Column("topology", "name of the topology", "topology"),
    Column("apply_name", "name of the apply process", "apply_name"),
)
_OBSERVED = Column(
    "observed_time",
    "when the apply process wrote this: every five seconds if something changed, else every minute",
    "observed_time",
)


def _count(name: str, meaning: str, key: str = "") -> Column:
    return Column(name, meaning, f"state.coordinator.{key or name}", "bigint")


_DDL = (
    *_OF,
    Column("ddl_number", "number of the record, ascending"),
    Column("source_database", "site of the change"),
    Column("source_transaction_id", "its transaction there"),
    Column("order_scn", "order SCN of the transaction, just below its commit SCN"),
    Column("message_number", "which of the transaction's LCRs it is, from 1"),
    Column("command_type", "what the client ran there, such as ALTER TABLE"),
    Column("object_owner", "schema of the table"),
    Column("object_name", "the table"),
    Column("ddl_text", "what the client sent there; long texts are cut"),
)
_DDL_REASON = (
    Column("reason", "why it was not applied, or not completely; empty: nothing to say"),
    Column("apply_time", "when"),
)

VIEWS: tuple[View, ...] = (
    View(
        "dba_apply",
        "An apply process at this database.",
        (
            *_OF,
            Column("queue_name", "queue from which it dequeues", "configuration.queue_name"),
            Column("source_database", "site whose changes it applies", "configuration.source_database"),
            Column("apply_captured", "YES: it applies captured LCRs", constant="YES"),
            Column(
                "apply_tag", "tag of the changes that it makes, in hexadecimal; NULL: none", "configuration.apply_tag"
            ),
            Column(
                "status",
                "ENABLED; DISABLED: it was stopped; ABORTED: it gave up, or an error transaction disabled it; UNKNOWN:"
                " it was enabled, and has not written for three minutes",
                "state.status",
            ),
            Column("error_message", "why it is ABORTED", "state.error_message"),
            Column("epoch", "epoch of the driver that wrote this; a higher one fences it out", "epoch"),
            _OBSERVED,
        ),
    ),
    View(
        "dba_apply_parameters",
        "A parameter of an apply process.",
        (
            *_OF,
            Column("parameter", "name of the parameter"),
            Column("value", "its value, defaults included"),
        ),
        each="configuration.parameters",
    ),
    View(
        "dba_apply_progress",
        "How far an apply process is, as a reader of the destination sees it: with `synchronous_commit: off` a crash"
        " may take what the last second brought.",
        (
            *_OF,
            Column("epoch", "epoch of the newest driver", "progress.epoch"),
            Column(
                "applied_message_number",
                "low watermark: every change up to this SCN of the source is applied or in the error queue",
                "progress.applied_message_number",
            ),
            Column("apply_time", "when that was last written", "progress.apply_time"),
            Column("servers", "apply servers of this epoch that have committed", "progress.servers"),
            Column("source_database", "site whose changes it applies", "configuration.source_database"),
            Column(
                "oldest_message_number",
                "SCN from which changes are needed again after a restart: the low watermark",
                "progress.oldest_message_number",
            ),
            Column(
                "applied_message_create_time",
                "when the newest applied transaction was committed at the source, as the driver wrote last; NULL: none"
                " since it started",
                "progress.applied_message_create_time",
            ),
        ),
    ),
    View(
        "dba_apply_error",
        "An error transaction.",
        (
            *_OF,
            Column("local_transaction_id", "number of the error transaction, as `headrace errors` takes it"),
            Column("source_database", "site of the transaction"),
            Column("source_transaction_id", "its number there"),
            Column("source_commit_scn", "its commit SCN"),
            Column("source_commit_time", "when it was committed there"),
            Column("message_number", "which of its LCRs failed, from 1; 0: none, it waits behind another transaction"),
            Column("message_count", "LCRs in it"),
            Column("error_number", "SQLSTATE of the database's error; empty: the row was not as the LCR expects"),
            Column("error_message", "what failed, without values"),
            Column("conflict_type", "kind of the conflict; empty: another error"),
            Column("depends_on", "error transaction behind which it entered the queue; 0: it failed itself"),
            Column("error_creation_time", "when it entered the queue"),
            Column("failed_message", "values of the LCR that failed, and of the row in its way"),
            Column("edits", "how often it was edited"),
        ),
        each="error_transactions",
    ),
    View(
        "dba_apply_error_messages",
        "The LCR of an error transaction that failed (`headrace errors show` lists all of them).",
        (
            *_OF,
            Column("local_transaction_id", "number of the error transaction"),
            Column("transaction_message_number", "which LCR of it, from 1"),
            Column("conflict_type", "kind of the conflict; empty: another error"),
            Column("conflict_info", "what failed"),
            Column("error_number", "SQLSTATE of the database's error"),
            Column("message", "values of the LCR, and of the row in its way"),
        ),
        each="error_messages",
    ),
    View(
        "dba_apply_error_edits",
        "What an operator changed in an error transaction, also in one that was executed or deleted since.",
        (
            *_OF,
            Column("local_transaction_id", "number of the error transaction"),
            Column("edit_number", "which edit of it, from 1"),
            Column("message_number", "which LCR of it, from 1"),
            Column("object_owner", "schema of the table"),
            Column("object_name", "the table"),
            Column("command_type", "command of the LCR"),
            Column("changes", "each value before and after"),
            Column("edited_by", "user and host"),
            Column("edit_time", "when"),
            Column("outcome", "EXECUTED or DELETED; empty: it is in the error queue"),
        ),
        is_said=False,
    ),
    View(
        "dba_apply_conflict_columns",
        "A column in the column list of a conflict handler.",
        (
            *_OF,
            Column("object_owner", "schema of the table"),
            Column("object_name", "the table"),
            Column("conflict_type", "kind of conflict that it handles"),
            Column("method_name", "the handler"),
            Column("resolution_column", "column whose values decide; NULL: none"),
            Column("column_name", "the column; NULL: every column outside the key, or the row"),
        ),
        each="configuration.conflict_columns",
    ),
    View(
        "dba_apply_key_columns",
        "A column of a substitute key.",
        (
            *_OF,
            Column("object_owner", "schema of the table"),
            Column("object_name", "the table"),
            Column("column_name", "the column"),
        ),
        each="configuration.key_columns",
    ),
    View(
        "dba_streams_rules",
        "A rule that an apply process evaluates.",
        (
            Column("topology", "name of the topology", "topology"),
            Column("streams_type", "APPLY: the client is an apply process", constant="APPLY"),
            Column("streams_name", "its name", "apply_name"),
            Column("rule_set_type", "POSITIVE or NEGATIVE"),
            Column("schema_name", "pattern of the table's schema"),
            Column("object_name", "pattern of the table's name"),
            Column("include_tagged_lcr", "NO: only changes without a tag"),
            Column("tag_condition", "which tags it takes; NULL: any"),
            Column("rule_condition", "condition of the rule, as in the file; NULL: none"),
            Column("dml_condition", "condition of a subset rule; NULL: it is none"),
        ),
        each="configuration.rules",
    ),
    View(
        "dba_streams_transformations",
        "A step of a transformation on the way to an apply process: of its own rules, or of those of a capture process"
        " or propagation before it. One row for each column.",
        (
            *_OF,
            Column("rule_owner", "schema of the table at the source"),
            Column("rule_name", "the table at the source"),
            Column("client_number", "which client that transforms the table, from 1, in the order of the way"),
            Column("transform_type", "DECLARATIVE TRANSFORMATION or CUSTOM TRANSFORMATION"),
            Column(
                "declarative_type",
                "KEEP COLUMNS, DELETE COLUMN, RENAME COLUMN, ADD COLUMN, RENAME TABLE or RENAME SCHEMA; NULL: a"
                " function",
            ),
            Column("from_schema_name", "schema before the step"),
            Column("to_schema_name", "schema behind it"),
            Column("from_table_name", "table before the step"),
            Column("to_table_name", "table behind it"),
            Column("from_column_name", "column that is kept, deleted, renamed or changed; NULL: none, or any"),
            Column("to_column_name", "column as it is called behind the step; of an added one, its name"),
            Column("column_value", "value of an added column as text; NULL: NULL, or the time"),
            Column("column_type", "type of an added column"),
            Column("column_function", "CURRENT_TIMESTAMP: the added column gets the time"),
            Column("user_function_name", "the function, package.module:function"),
            Column("version", "version of the function's code"),
            Column(
                "precedence",
                "the default order: 0 keep, 1 delete, 2 rename, 3 add columns, 4 table, 5 schema; NULL: a function"
                " comes last",
            ),
            Column(
                "step_number",
                "place among the table's steps at the client, from 1, in the order in which they are applied",
            ),
        ),
        each="configuration.transformations",
    ),
    View(
        "v_streams_apply_reader",
        "The reader of an apply process, as it was when this was written.",
        (
            *_OF,
            Column("state", "what it does, in the manuals' words", "state.reader.state"),
            Column(
                "total_messages_dequeued",
                "row LCRs dequeued since it started",
                "state.reader.total_messages_dequeued",
                "bigint",
            ),
            Column(
                "total_transactions_dequeued",
                "complete transactions of them",
                "state.reader.total_transactions_dequeued",
                "bigint",
            ),
            Column("total_batches_dequeued", "batches they came in", "state.reader.total_batches_dequeued", "bigint"),
            Column(
                "total_rows_discarded",
                "row LCRs that the rules left out",
                "state.reader.total_rows_discarded",
                "bigint",
            ),
            _count("dequeued_message_number", "SCN up to which everything was dequeued", "received_scn"),
            _OBSERVED,
        ),
    ),
    View(
        "v_streams_apply_coordinator",
        "The coordinator of an apply process, as it was when this was written.",
        (
            *_OF,
            Column("state", "what it does, in the manuals' words", "state.coordinator.state"),
            _count("total_received", "transactions that it got from the reader since it started"),
            _count("total_assigned", "transactions that it gave to apply servers; again after a failure"),
            _count("total_applied", "transactions applied"),
            _count("total_errors", "transactions that went into the error queue"),
            _count("total_conflicts", "conflicts, resolved or not"),
            _count("total_wait_deps", "groups that waited for another one on which they depend"),
            _count("total_rollbacks", "destination transactions rolled back"),
            _count("total_commits", "destination transactions committed"),
            _count("total_rows", "row LCRs applied"),
            _count("total_rows_written", "rows written for them"),
            _count("unassigned_complete_txns", "transactions that wait for an apply server"),
            _count("active_server_count", "apply servers that have joined"),
            _count("error_transactions", "transactions in the error queue"),
            _count(
                "lwm_message_number",
                "low watermark: everything up to this SCN is applied or in the error queue",
                "low_watermark_scn",
            ),
            _count("hwm_message_number", "high watermark: nothing above this SCN is applied", "high_watermark_scn"),
            _OBSERVED,
        ),
    ),
    View(
        "v_streams_apply_server",
        "An apply server, as it was when this was written.",
        (
            *_OF,
            Column("server_id", "number of the apply server, from 0"),
            Column("state", "what it does, in the manuals' words"),
            Column("detail", "what it waits for, or the last error that it tried again after"),
            Column("group_number", "lowest group that it holds; 0: none"),
            Column("commitscn", "commit SCN of the last transaction in that group; 0: none"),
            Column("dep_group_number", "group for which that one waits; 0: none"),
            Column("dep_commitscn", "commit SCN of the last transaction in that group; 0: none"),
            Column("dep_server_id", "apply server that has it, which is whom this one waits for; -1: none"),
            Column("host", "where its process runs"),
            Column("pid", "its process"),
            Column("attempts", "how often its task has begun"),
            _OBSERVED,
        ),
        each="state.servers",
    ),
    View(
        "dba_apply_dml_handlers",
        "A handler of users' code or statements for one operation on a table.",
        (
            *_OF,
            Column("object_owner", "schema of the table; NULL: a precommit handler, which is of no table"),
            Column("object_name", "the table"),
            Column("operation_name", "INSERT, UPDATE or DELETE; NULL: a precommit handler"),
            Column("user_procedure", "function, as module:function; NULL: statements"),
            Column(
                "code_version",
                "version of the code that runs: of its module and what this imports from the code folder; NULL:"
                " statements",
            ),
            Column(
                "error_handler",
                "Y: it is called when an LCR fails; N: instead of applying an LCR, or before the commit",
            ),
            Column("handler_type", "PROCEDURE HANDLER, STMT HANDLER, ERROR HANDLER or PRECOMMIT HANDLER"),
            Column("handler_name", "statements: where the file has them (dml_handlers[n]); NULL: a function"),
            Column("statement_number", "statements: in which order this one runs, from 1; NULL: a function"),
            Column("statement", "statements: this one, as in the file; NULL: a function"),
            _OBSERVED,
        ),
        each="configuration.dml_handlers",
    ),
    View(
        "dba_apply_conflict_history",
        "A conflict, resolved or not, written in the transaction of the data.",
        (
            *_OF,
            Column("conflict_number", "number of the conflict, ascending"),
            Column("source_database", "site of the transaction"),
            Column("source_transaction_id", "its number there"),
            Column("source_commit_scn", "its commit SCN"),
            Column("message_number", "which of its LCRs conflicted, from 1"),
            Column("object_owner", "schema of the table"),
            Column("object_name", "the table"),
            Column("command_type", "command of the LCR"),
            Column("conflict_type", "kind of the conflict"),
            Column("conflicting_columns", "columns whose old values differ from the row's"),
            Column("method_name", "what decided, such as maximum(changed_at); empty: nobody did"),
            Column(
                "outcome",
                "LCR APPLIED, LCR DISCARDED, MERGED (columns of both), HANDLED (the function in method_name dealt with"
                " it) or ERROR QUEUE",
            ),
            Column("applied_columns", "columns of the LCR that were written"),
            Column("old_values", "old values of the LCR, the first 200 characters of each"),
            Column("new_values", "new values of the LCR"),
            Column("current_values", "values of the row (or rows) in the way, as it was"),
            Column("local_transaction_id", "error transaction that has it; NULL: none"),
            Column("resolution_time", "when"),
        ),
        is_said=False,
    ),
    View(
        "dba_apply_ddl",
        "A DDL change of a replicated table and what became of it, written in the transaction of the data. The newest"
        " 10,000 of each apply process stay.",
        (
            *_DDL,
            Column(
                "outcome",
                "APPLIED; PASSED OVER: the table already had all of it; NOT APPLIED: it is not replicated; SKIPPED: the"
                " operator asked for that; SCHEDULED: dba_ddl_jobs has it until it is made",
            ),
            Column("statements", "what was run here, in order"),
            *_DDL_REASON,
        ),
        is_said=False,
    ),
    View(
        "dba_ddl_not_applied",
        "A DDL change that was recorded only. Rows that need it wait until the table is altered here.",
        (*_DDL, Column("outcome", "NOT APPLIED or SKIPPED"), *_DDL_REASON),
        is_said=False,
    ),
    View(
        "dba_ddl_jobs",
        "An index that is being made outside the transactions of the data, as CREATE INDEX CONCURRENTLY made it at the"
        " source. The row goes when the index is there: dba_apply_ddl then has the outcome.",
        (
            *_OF,
            Column("job_number", "number of the job, ascending"),
            Column("source_database", "site of the change"),
            Column("source_transaction_id", "its transaction there"),
            Column("order_scn", "order SCN of the transaction, just below its commit SCN"),
            Column("message_number", "which of the transaction's LCRs it is, from 1"),
            Column("object_owner", "schema of the table"),
            Column("object_name", "the table"),
            Column("index_name", "the index, in the schema of its table"),
            Column("definition", "statement that makes it; it is run with CONCURRENTLY"),
            Column("state", "WAITING; RUNNING; FAILED: it is tried again"),
            Column("attempts", "how often it began"),
            Column("problem", "why the last attempt failed; empty: it did not"),
            Column("fix", "what to do about that"),
            Column("creation_time", "when it was recorded"),
            Column("changed_at", "when this was last written"),
        ),
        is_said=False,
    ),
    View(
        "dba_apply_instantiated_objects",
        "A table that was instantiated for an apply process.",
        (
            *_OF,
            Column("source_database", "site of the table"),
            Column("source_object_owner", "its schema, as its changes arrive"),
            Column("source_object_name", "its name, as its changes arrive"),
            Column("instantiation_scn", "SCN of the copy's snapshot: later changes are applied"),
            Column(
                "state",
                "COPYING; COPIED or JOINING: its changes follow until it is where the others are; DONE; KEPT: its rows"
                " were kept as they were; FAILED; LEFT: not replicated any more",
            ),
            Column("row_count", "rows of the copy"),
            Column("digest", "digest of their values, equal on both sides"),
            Column("problem", "why it could not be copied; empty: nothing is wrong"),
            Column("changed_at", "when this was last written"),
            Column("identity", "which table of the source it is, whatever its name"),
        ),
        is_said=False,
    ),
)


def rows_said(said: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the views that an apply process's description alone fills, by view name.

    Args:
        said: the description (paths as in the module's text). Without `state` no driver has described its state, and
            views that need it have no rows.
    """
    return {view.name: list(_rows(view, said)) for view in VIEWS if view.is_said and view.each not in _OF_ERRORS}


def _rows(view: View, said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if view.needs_driver and not said.get("state"):
        return
    for entry in _entries(view, said):
        yield {
            column.name: column.constant
            if column.constant is not None
            else _at(said, column.said)
            if column.said
            else entry.get(column.name)
            for column in view.columns
        }


def _entries(view: View, said: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    if not view.each:
        return ({},)
    found = _at(said, view.each) or ()
    if isinstance(found, Mapping):
        name, value = (column.name for column in view.columns if not column.said)
        return [{name: key, value: each} for key, each in found.items()]
    entries: Iterable[Mapping[str, Any]] = found
    return entries


def _at(said: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - a value of JSON
    found: Any = said
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def error_rows(topology: str, apply: str, errors: Iterable[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the error queue's views, by view name; without values of rows.

    Args:
        topology: name of the topology.
        apply: name of the apply process.
        errors: fields of `headrace.databases.ports.ErrorTransaction`.
    """
    found, messages = [], []
    for each in errors:
        both = {
            "local_transaction_id": each["number"],
            "error_number": each["sqlstate"],
            "conflict_type": each["conflict_type"],
        }
        found.append(
            {
                **both,
                "source_database": each["source"],
                "source_transaction_id": each["transaction_id"],
                "source_commit_scn": each["commit_scn"],
                "source_commit_time": time_text(each["commit_time_us"]),
                "message_number": each["failed_position"] + 1,
                "message_count": each["row_count"],
                "error_message": each["message"],
                "depends_on": each["depends_on"],
                "error_creation_time": time_text(each["created_us"]),
                "failed_message": None,
                "edits": each["edits"],
            }
        )
        if each["failed_position"] >= 0:
            messages.append(
                {
                    **both,
                    "transaction_message_number": each["failed_position"] + 1,
                    "conflict_info": each["message"],
                    "message": None,
                }
            )
    said = {"topology": topology, "apply_name": apply, "error_transactions": found, "error_messages": messages}
    return {view.name: list(_rows(view, said)) for view in VIEWS if view.each in _OF_ERRORS}


def time_text(time_us: int) -> str | None:
    """Return a time in JSON form, in UTC; None: no time.

    Args:
        time_us: microseconds since the epoch; 0: none.
    """
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat() if time_us else None
