"""The views of a destination for people, in the manuals' words: what each shows, column by column.

`dba_*` read what is recorded with the data, and what an apply process says of itself when it starts. `v_streams_apply_*` are the
manuals' V$STREAMS_APPLY_*: the state that the apply process wrote last, with the time (`observed_time`); a dollar sign would have to be
quoted in every query. A version of the schema makes a view once: what it made is not changed, a later version replaces it.

Source: Oracle Streams Concepts and Administration 11.2, "Monitoring Streams Apply Processes"; Database Reference.
"""

from __future__ import annotations

from dataclasses import dataclass

from databases.postgres.connection import literal

__all__ = ["VIEWS", "View", "statements"]


@dataclass(frozen=True, slots=True)
class View:
    """A view.

    Args:
        name: in the schema headrace.
        comment: what a row is.
        source: what follows FROM.
        columns: name, expression, and what it means.
        is_replaced: it exists in an earlier version: its first columns are as they were.
        since: version of the schema that makes it.
    """

    name: str
    comment: str
    source: str
    columns: tuple[tuple[str, str, str], ...]
    is_replaced: bool = False
    since: int = 10


_OF = (("topology", "s.topology", "name of the topology"), ("apply_name", "s.apply", "name of the apply process"))
_OBSERVED = ("observed_time", "s.observed_at", "when the apply process wrote this: every five seconds if something changed, else every minute")
_STATE = "headrace.apply_state s"


def _text(path: str, kind: str = "") -> str:
    """A value of the state or the configuration, by its path; `kind`: another type than text."""
    column, *names = path.split(".")
    found = f"s.{column} #>> '{{{','.join(names)}}}'"
    return f"({found})::{kind}" if kind else found


def _count(name: str, meaning: str, key: str = "") -> tuple[str, str, str]:
    return name, _text(f"state.coordinator.{key or name}", "bigint"), meaning


VIEWS: tuple[View, ...] = (
    View(
        "dba_apply", "An apply process at this database.", _STATE,
        (
            *_OF,
            ("queue_name", _text("configuration.queue_name"), "queue from which it dequeues"),
            ("source_database", _text("configuration.source_database"), "site whose changes it applies"),
            ("apply_captured", "'YES'::text", "YES: it applies captured LCRs"),
            ("apply_tag", _text("configuration.apply_tag"), "tag of the changes that it makes, in hexadecimal; NULL: none"),
            (
                "status",
                "CASE WHEN s.state ->> 'status' = 'ENABLED' AND s.observed_at < clock_timestamp() - interval '3 minutes' THEN 'UNKNOWN'"
                " ELSE s.state ->> 'status' END",
                "ENABLED; DISABLED: it was stopped; ABORTED: it gave up, or an error transaction disabled it; UNKNOWN: it was enabled, and has not"
                " written for three minutes",
            ),
            ("error_message", "s.state ->> 'error_message'", "why it is ABORTED"),
            ("epoch", "s.epoch", "epoch of the driver that wrote this; a higher one fences it out"),
            _OBSERVED,
        ),
    ),
    View(
        "dba_apply_parameters", "A parameter of an apply process.",
        f"{_STATE}, jsonb_each_text(s.configuration -> 'parameters') AS p (name, value)",
        (*_OF, ("parameter", "p.name", "name of the parameter"), ("value", "p.value", "its value, defaults included")),
    ),
    View(
        "dba_apply_progress", "How far an apply process is, as the destination has it durably.",
        "headrace.apply_process p LEFT JOIN headrace.apply_progress g USING (topology, apply)"
        " LEFT JOIN headrace.apply_state s USING (topology, apply) GROUP BY p.topology, p.apply, s.configuration, s.state",
        (
            ("topology", "p.topology", "name of the topology"), ("apply_name", "p.apply", "name of the apply process"),
            ("epoch", "p.epoch", "epoch of the newest driver"),
            (
                "applied_message_number", "greatest(p.low_watermark, coalesce(max(g.low_watermark), 0))",
                "low watermark: every change up to this SCN of the source is applied or in the error queue",
            ),
            ("apply_time", "greatest(p.applied_at, max(g.applied_at))", "when that was last written"),
            ("servers", "count(g.server)", "apply servers of this epoch that have committed"),
            ("source_database", _text("configuration.source_database"), "site whose changes it applies"),
            (
                "oldest_message_number", "greatest(p.low_watermark, coalesce(max(g.low_watermark), 0))",
                "SCN from which changes are needed again after a restart: the low watermark",
            ),
            (
                "applied_message_create_time",
                "'epoch'::timestamptz + nullif((s.state #>> '{coordinator,last_commit_time_us}')::bigint, 0) * interval '1 microsecond'",
                "when the newest applied transaction was committed at the source, as the driver wrote last; NULL: none since it started",
            ),
        ), is_replaced=True,
    ),
    View(
        "dba_apply_error", "An error transaction.", "headrace.apply_error e ORDER BY e.number",
        (
            ("topology", "e.topology", "name of the topology"), ("apply_name", "e.apply", "name of the apply process"),
            ("local_transaction_id", "e.number", "number of the error transaction, as `headrace errors` takes it"),
            ("source_database", "e.source", "site of the transaction"),
            ("source_transaction_id", "e.transaction_id", "its number there"), ("source_commit_scn", "e.commit_scn", "its commit SCN"),
            ("source_commit_time", "e.commit_time", "when it was committed there"),
            ("message_number", "e.failed_position + 1", "which of its LCRs failed, from 1; 0: none, it waits behind another transaction"),
            ("message_count", "e.row_count", "LCRs in it"),
            ("error_number", "e.sqlstate", "SQLSTATE of the database's error; empty: the row was not as the LCR expects"),
            ("error_message", "e.message", "what failed, without values"),
            ("conflict_type", "e.conflict_type", "kind of the conflict; empty: another error"),
            ("depends_on", "e.depends_on", "error transaction behind which it entered the queue; 0: it failed itself"),
            ("error_creation_time", "e.created_at", "when it entered the queue"),
            ("failed_message", "e.readable", "values of the LCR that failed, and of the row in its way"),
            ("edits", "(SELECT count(*) FROM headrace.apply_error_edit d WHERE d.number = e.number)", "how often it was edited"),
        ), is_replaced=True,
    ),
    View(
        "dba_apply_error_messages",
        "The LCR of an error transaction that failed (`headrace errors show` lists all of them).",
        "headrace.apply_error e WHERE e.failed_position >= 0 ORDER BY e.number",
        (
            ("topology", "e.topology", "name of the topology"), ("apply_name", "e.apply", "name of the apply process"),
            ("local_transaction_id", "e.number", "number of the error transaction"),
            ("transaction_message_number", "e.failed_position + 1", "which LCR of it, from 1"),
            ("conflict_type", "e.conflict_type", "kind of the conflict; empty: another error"),
            ("conflict_info", "e.message", "what failed"), ("error_number", "e.sqlstate", "SQLSTATE of the database's error"),
            ("message", "e.readable", "values of the LCR, and of the row in its way"),
        ),
    ),
    View(
        "dba_apply_error_edits", "What an operator changed in an error transaction, also in one that was executed or deleted since.",
        "headrace.apply_error_edit d ORDER BY d.edited_at, d.number, d.edit",
        (
            ("topology", "d.topology", "name of the topology"), ("apply_name", "d.apply", "name of the apply process"),
            ("local_transaction_id", "d.number", "number of the error transaction"),
            ("edit_number", "d.edit", "which edit of it, from 1"), ("message_number", 'd."position" + 1', "which LCR of it, from 1"),
            ("object_owner", "d.owner", "schema of the table"), ("object_name", "d.name", "the table"),
            ("command_type", "d.command", "command of the LCR"), ("changes", "d.changes", "each value before and after"),
            ("edited_by", "d.edited_by", "user and host"), ("edit_time", "d.edited_at", "when"),
            ("outcome", "d.outcome", "EXECUTED or DELETED; empty: it is in the error queue"),
        ),
    ),
    View(
        "dba_apply_conflict_columns", "A column in the column list of a conflict handler.",
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'conflict_columns') AS c (object_owner text, object_name text, conflict_type text,"
        " method_name text, resolution_column text, column_name text)",
        (
            *_OF, ("object_owner", "c.object_owner", "schema of the table"), ("object_name", "c.object_name", "the table"),
            ("conflict_type", "c.conflict_type", "kind of conflict that it handles"), ("method_name", "c.method_name", "the handler"),
            ("resolution_column", "c.resolution_column", "column whose values decide; NULL: none"),
            ("column_name", "c.column_name", "the column; NULL: every column outside the key, or the row"),
        ),
    ),
    View(
        "dba_apply_key_columns", "A column of a substitute key.",
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'key_columns') AS k (object_owner text, object_name text, column_name text)",
        (
            *_OF, ("object_owner", "k.object_owner", "schema of the table"), ("object_name", "k.object_name", "the table"),
            ("column_name", "k.column_name", "the column"),
        ), since=12,
    ),
    View(
        "dba_streams_rules", "A rule that an apply process evaluates.",
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'rules') AS r (rule_set_type text, schema_name text, object_name text,"
        " include_tagged_lcr text, tag_condition text, rule_condition text, dml_condition text)",
        (
            ("topology", "s.topology", "name of the topology"), ("streams_type", "'APPLY'::text", "APPLY: the client is an apply process"),
            ("streams_name", "s.apply", "its name"), ("rule_set_type", "r.rule_set_type", "POSITIVE or NEGATIVE"),
            ("schema_name", "r.schema_name", "pattern of the table's schema"), ("object_name", "r.object_name", "pattern of the table's name"),
            ("include_tagged_lcr", "r.include_tagged_lcr", "NO: only changes without a tag"),
            ("tag_condition", "r.tag_condition", "which tags it takes; NULL: any"),
            ("rule_condition", "r.rule_condition", "condition of the rule, as in the file; NULL: none"),
            ("dml_condition", "r.dml_condition", "condition of a subset rule; NULL: it is none"),
        ),
    ),
    View(
        "dba_streams_transformations",
        "A step of a transformation on the way to an apply process: of its own rules, or of those of a capture process or propagation before it. One row for each column.",
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'transformations') AS t (rule_owner text, rule_name text, client_number integer,"
        " transform_type text, declarative_type text, from_schema_name text, to_schema_name text, from_table_name text, to_table_name text,"
        " from_column_name text, to_column_name text, column_value text, column_type text, column_function text, user_function_name text,"
        " version text, precedence integer, step_number integer) ORDER BY s.topology, s.apply, t.rule_owner, t.rule_name, t.client_number, t.step_number",
        (
            *_OF, ("rule_owner", "t.rule_owner", "schema of the table at the source"),
            ("rule_name", "t.rule_name", "the table at the source"),
            ("client_number", "t.client_number", "which client that transforms the table, from 1, in the order of the way"),
            ("transform_type", "t.transform_type", "DECLARATIVE TRANSFORMATION or CUSTOM TRANSFORMATION"),
            ("declarative_type", "t.declarative_type", "KEEP COLUMNS, DELETE COLUMN, RENAME COLUMN, ADD COLUMN, RENAME TABLE or RENAME SCHEMA; NULL: a function"),
            ("from_schema_name", "t.from_schema_name", "schema before the step"), ("to_schema_name", "t.to_schema_name", "schema behind it"),
            ("from_table_name", "t.from_table_name", "table before the step"), ("to_table_name", "t.to_table_name", "table behind it"),
            ("from_column_name", "t.from_column_name", "column that is kept, deleted, renamed or changed; NULL: none, or any"),
            ("to_column_name", "t.to_column_name", "column as it is called behind the step; of an added one, its name"),
            ("column_value", "t.column_value", "value of an added column as text; NULL: NULL, or the time"),
            ("column_type", "t.column_type", "type of an added column"),
            ("column_function", "t.column_function", "CURRENT_TIMESTAMP: the added column gets the time"),
            ("user_function_name", "t.user_function_name", "the function, package.module:function"),
            ("version", "t.version", "version of the function's code"),
            ("precedence", "t.precedence", "the default order: 0 keep, 1 delete, 2 rename, 3 add columns, 4 table, 5 schema; NULL: a function comes last"),
            ("step_number", "t.step_number", "place among the table's steps at the client, from 1, in the order in which they are applied"),
        ), since=11,
    ),
    View(
        "v_streams_apply_reader", "The reader of an apply process, as it was when this was written.", _STATE,
        (
            *_OF, ("state", _text("state.reader.state"), "what it does, in the manuals' words"),
            ("total_messages_dequeued", _text("state.reader.total_messages_dequeued", "bigint"), "row LCRs dequeued since it started"),
            ("total_transactions_dequeued", _text("state.reader.total_transactions_dequeued", "bigint"), "complete transactions of them"),
            ("total_batches_dequeued", _text("state.reader.total_batches_dequeued", "bigint"), "batches they came in"),
            ("total_rows_discarded", _text("state.reader.total_rows_discarded", "bigint"), "row LCRs that the rules left out"),
            _count("dequeued_message_number", "SCN up to which everything was dequeued", "received_scn"),
            _OBSERVED,
        ),
    ),
    View(
        "v_streams_apply_coordinator", "The coordinator of an apply process, as it was when this was written.", _STATE,
        (
            *_OF, ("state", _text("state.coordinator.state"), "what it does, in the manuals' words"),
            _count("total_received", "transactions that it got from the reader since it started"),
            _count("total_assigned", "transactions that it gave to apply servers; again after a failure"),
            _count("total_applied", "transactions applied"), _count("total_errors", "transactions that went into the error queue"),
            _count("total_conflicts", "conflicts, resolved or not"),
            _count("total_wait_deps", "groups that waited for another one on which they depend"),
            _count("total_rollbacks", "destination transactions rolled back"), _count("total_commits", "destination transactions committed"),
            _count("total_rows", "row LCRs applied"), _count("total_rows_written", "rows written for them"),
            _count("unassigned_complete_txns", "transactions that wait for an apply server"),
            _count("active_server_count", "apply servers that have joined"),
            _count("error_transactions", "transactions in the error queue"),
            _count("lwm_message_number", "low watermark: everything up to this SCN is applied or in the error queue", "low_watermark_scn"),
            _count("hwm_message_number", "high watermark: nothing above this SCN is applied", "high_watermark_scn"),
            _OBSERVED,
        ),
    ),
    View(
        "v_streams_apply_server", "An apply server, as it was when this was written.",
        f"{_STATE}, jsonb_to_recordset(s.state -> 'servers') AS v (server_id integer, state text, detail text, host text, pid integer,"
        " attempts integer, group_number bigint, commitscn bigint, dep_group_number bigint, dep_commitscn bigint, dep_server_id integer)",
        (
            *_OF, ("server_id", "v.server_id", "number of the apply server, from 0"),
            ("state", "v.state", "what it does, in the manuals' words"), ("detail", "v.detail", "what it waits for, or the last error that it tried again after"),
            ("group_number", "v.group_number", "lowest group that it holds; 0: none"),
            ("commitscn", "v.commitscn", "commit SCN of the last transaction in that group; 0: none"),
            ("dep_group_number", "v.dep_group_number", "group for which that one waits; 0: none"),
            ("dep_commitscn", "v.dep_commitscn", "commit SCN of the last transaction in that group; 0: none"),
            ("dep_server_id", "v.dep_server_id", "apply server that has it, which is whom this one waits for; -1: none"),
            ("host", "v.host", "where its process runs"), ("pid", "v.pid", "its process"),
            ("attempts", "v.attempts", "how often its task has begun"), _OBSERVED,
        ),
    ),
    View(
        "dba_apply_dml_handlers", "A handler of users' code or statements for one operation on a table.",
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'dml_handlers') AS h (object_owner text, object_name text, operation_name text,"
        " user_procedure text, code_version text, error_handler text, handler_type text, handler_name text, statement_number integer,"
        " statement text)",
        (
            *_OF, ("object_owner", "h.object_owner", "schema of the table; NULL: a precommit handler, which is of no table"),
            ("object_name", "h.object_name", "the table"), ("operation_name", "h.operation_name", "INSERT, UPDATE or DELETE; NULL: a precommit handler"),
            ("user_procedure", "h.user_procedure", "function, as module:function; NULL: statements"),
            ("code_version", "h.code_version", "version of the code that runs: of its module and what this imports from the code folder; NULL: statements"),
            ("error_handler", "h.error_handler", "Y: it is called when an LCR fails; N: instead of applying an LCR, or before the commit"),
            ("handler_type", "h.handler_type", "PROCEDURE HANDLER, STMT HANDLER, ERROR HANDLER or PRECOMMIT HANDLER"),
            ("handler_name", "h.handler_name", "statements: where the file has them (dml_handlers[n]); NULL: a function"),
            ("statement_number", "h.statement_number", "statements: in which order this one runs, from 1; NULL: a function"),
            ("statement", "h.statement", "statements: this one, as in the file; NULL: a function"), _OBSERVED,
        ),
        since=13,
    ),
    View(
        "dba_apply_conflict_history", "A conflict, resolved or not, written in the transaction of the data.", 'headrace.conflict_history h ORDER BY h.number',
        (
            ("topology", "h.topology", "name of the topology"), ("apply_name", "h.apply", "name of the apply process"),
            ("conflict_number", "h.number", "number of the conflict, ascending"), ("source_database", "h.source", "site of the transaction"),
            ("source_transaction_id", "h.transaction_id", "its number there"), ("source_commit_scn", "h.commit_scn", "its commit SCN"),
            ("message_number", 'h."position" + 1', "which of its LCRs conflicted, from 1"),
            ("object_owner", "h.owner", "schema of the table"), ("object_name", "h.name", "the table"),
            ("command_type", "h.command", "command of the LCR"), ("conflict_type", "h.kind", "kind of the conflict"),
            ("conflicting_columns", 'h."columns"', "columns whose old values differ from the row's"),
            ("method_name", "h.handler", "what decided, such as maximum(changed_at); empty: nobody did"),
            ("outcome", "h.outcome", "LCR APPLIED, LCR DISCARDED, MERGED (columns of both), HANDLED (the function in method_name dealt with it) or ERROR QUEUE"),
            ("applied_columns", "h.applied_columns", "columns of the LCR that were written"),
            ("old_values", 'h."old"', "old values of the LCR, the first 200 characters of each"),
            ("new_values", 'h."new"', "new values of the LCR"),
            ("current_values", 'h."current"', "values of the row (or rows) in the way, as it was"),
            ("local_transaction_id", "nullif(h.error_number, 0)", "error transaction that has it; NULL: none"),
            ("resolution_time", "h.resolved_at", "when"),
        ), is_replaced=True, since=15,
    ),
    View(
        "dba_apply_instantiated_objects", "A table that was instantiated for an apply process.", "headrace.instantiation i",
        (
            ("topology", "i.topology", "name of the topology"), ("apply_name", "i.apply", "name of the apply process"),
            ("source_database", "i.source", "site of the table"), ("source_object_owner", "i.owner", "its schema, as its changes arrive"),
            ("source_object_name", "i.name", "its name, as its changes arrive"),
            ("instantiation_scn", "i.scn", "SCN of the copy's snapshot: later changes are applied"),
            ("state", "i.state", "COPYING; COPIED or JOINING: its changes follow until it is where the others are; DONE; KEPT: its rows were kept as they were; FAILED; LEFT: not replicated any more"),
            ("row_count", "i.row_count", "rows of the copy"), ("digest", "i.digest", "digest of their values, equal on both sides"),
            ("problem", "i.problem", "why it could not be copied; empty: nothing is wrong"), ("changed_at", "i.changed_at", "when this was last written"),
            ("identity", "i.identity", "which table of the source it is, whatever its name"),
        ), is_replaced=True, since=15,
    ),
)


def statements(version: int) -> tuple[str, ...]:
    """What makes the views of a version of the schema, each followed by the comments on it and on its columns."""
    return tuple(statement for view in VIEWS if view.since == version for statement in _of(view))


def _of(view: View) -> tuple[str, ...]:
    columns = ",\n       ".join(f"{expression} AS {name}" for name, expression, _ in view.columns)
    replaces = "OR REPLACE " if view.is_replaced else ""
    return (
        f"CREATE {replaces}VIEW headrace.{view.name} AS\nSELECT {columns}\nFROM {view.source}",
        f"COMMENT ON VIEW headrace.{view.name} IS {literal(view.comment)}",
        *(f"COMMENT ON COLUMN headrace.{view.name}.{name} IS {literal(meaning)}" for name, _, meaning in view.columns),
    )
