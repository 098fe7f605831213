"""SQL of the views at a destination that `headrace.databases.destination_views` describes.

The views `dba_*` read the records that are committed with the data, and the description that an apply process writes
when it starts. The views `v_streams_apply_*` are the manuals' V$STREAMS_APPLY_*: the state that the apply process wrote
last, with its time (`observed_time`). They have no dollar sign, because every query would have to quote it. A schema
version creates a view once; only a later version replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.databases.destination_views import VIEWS, Column, View
from headrace.lcr.table_name import literal

__all__ = ["statements"]


@dataclass(frozen=True, slots=True)
class _Made:
    """Definition of a view.

    Args:
        source: text after FROM.
        of: alias that qualifies columns without an expression.
        expressions: column name to expression.
        is_replaced: True when an earlier version has the view; its first columns stay the same.
        since: version of the schema that creates the view.
    """

    source: str
    of: str = ""
    expressions: Mapping[str, str] = field(default_factory=dict)
    is_replaced: bool = False
    since: int = 10


_STATE = "headrace.apply_state s"
_SAID = {
    "topology": "s.topology",
    "apply_name": "s.apply",
    "epoch": "s.epoch",
    "observed_time": "s.observed_at",
    "state.error_message": "s.state ->> 'error_message'",
}


def _text(path: str, kind: str = "") -> str:
    """Return the expression for a value of the state or the configuration.

    Args:
        path: path of the value, with dots.
        kind: type of the value; empty for text.
    """
    column, *names = path.split(".")
    found = f"s.{column} #>> '{{{','.join(names)}}}'"
    return f"({found})::{kind}" if kind else found


_DDL = {
    "apply_name": "d.apply",
    "ddl_number": "d.number",
    "source_database": "d.source",
    "source_transaction_id": "d.transaction_id",
    "message_number": 'd."position" + 1',
    "command_type": "d.command",
    "object_owner": "d.owner",
    "object_name": "d.name",
    "apply_time": "d.applied_at",
}

_MADE: dict[str, _Made] = {
    "dba_apply": _Made(
        _STATE,
        expressions={
            "status": "CASE WHEN s.state ->> 'status' = 'ENABLED' AND s.observed_at < clock_timestamp() - interval '3"
            " minutes' THEN 'UNKNOWN' ELSE s.state ->> 'status' END",
        },
    ),
    "dba_apply_parameters": _Made(
        f"{_STATE}, jsonb_each_text(s.configuration -> 'parameters') AS p (name, value)",
        of="p",
        expressions={
            "parameter": "p.name",
        },
    ),
    "dba_apply_progress": _Made(
        "headrace.apply_process p LEFT JOIN headrace.apply_progress g USING (topology, apply)"
        " LEFT JOIN headrace.apply_state s USING (topology, apply) GROUP BY p.topology, p.apply, s.configuration,"
        " s.state",
        expressions={
            "topology": "p.topology",
            "apply_name": "p.apply",
            "epoch": "p.epoch",
            "applied_message_number": "greatest(p.low_watermark, coalesce(max(g.low_watermark), 0))",
            "apply_time": "greatest(p.applied_at, max(g.applied_at))",
            "servers": "count(g.server)",
            "source_database": _text("configuration.source_database"),
            "oldest_message_number": "greatest(p.low_watermark, coalesce(max(g.low_watermark), 0))",
            "applied_message_create_time": "'epoch'::timestamptz + nullif((s.state #>>"
            " '{coordinator,last_commit_time_us}')::bigint, 0) * interval '1 microsecond'",
        },
        is_replaced=True,
    ),
    "dba_apply_error": _Made(
        "headrace.apply_error e ORDER BY e.number",
        of="e",
        expressions={
            "apply_name": "e.apply",
            "local_transaction_id": "e.number",
            "source_database": "e.source",
            "source_transaction_id": "e.transaction_id",
            "source_commit_scn": "e.commit_scn",
            "source_commit_time": "e.commit_time",
            "message_number": "e.failed_position + 1",
            "message_count": "e.row_count",
            "error_number": "e.sqlstate",
            "error_message": "e.message",
            "error_creation_time": "e.created_at",
            "failed_message": "e.readable",
            "edits": "(SELECT count(*) FROM headrace.apply_error_edit d WHERE d.number = e.number)",
        },
        is_replaced=True,
    ),
    "dba_apply_error_messages": _Made(
        "headrace.apply_error e WHERE e.failed_position >= 0 ORDER BY e.number",
        of="e",
        expressions={
            "apply_name": "e.apply",
            "local_transaction_id": "e.number",
            "transaction_message_number": "e.failed_position + 1",
            "conflict_info": "e.message",
            "error_number": "e.sqlstate",
            "message": "e.readable",
        },
    ),
    "dba_apply_error_edits": _Made(
        "headrace.apply_error_edit d ORDER BY d.edited_at, d.number, d.edit",
        of="d",
        expressions={
            "apply_name": "d.apply",
            "local_transaction_id": "d.number",
            "edit_number": "d.edit",
            "message_number": 'd."position" + 1',
            "object_owner": "d.owner",
            "object_name": "d.name",
            "command_type": "d.command",
            "edit_time": "d.edited_at",
        },
    ),
    "dba_apply_conflict_columns": _Made(
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'conflict_columns') AS c (object_owner text, object_name"
        " text, conflict_type text, method_name text, resolution_column text, column_name text)",
        of="c",
    ),
    "dba_apply_key_columns": _Made(
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'key_columns') AS k (object_owner text, object_name text,"
        " column_name text)",
        of="k",
        since=12,
    ),
    "dba_streams_rules": _Made(
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'rules') AS r (rule_set_type text, schema_name text,"
        " object_name text, include_tagged_lcr text, tag_condition text, rule_condition text, dml_condition text)",
        of="r",
    ),
    "dba_streams_transformations": _Made(
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'transformations') AS t (rule_owner text, rule_name text,"
        " client_number integer, transform_type"
        " text, declarative_type text, from_schema_name text, to_schema_name text, from_table_name text, to_table_name"
        " text, from_column_name text,"
        " to_column_name text, column_value text, column_type text, column_function text, user_function_name text,"
        " version text, precedence integer, step_number integer) ORDER BY s.topology, s.apply, t.rule_owner,"
        " t.rule_name, t.client_number, t.step_number",
        of="t",
        since=11,
    ),
    "v_streams_apply_reader": _Made(_STATE),
    "v_streams_apply_coordinator": _Made(_STATE),
    "v_streams_apply_server": _Made(
        f"{_STATE}, jsonb_to_recordset(s.state -> 'servers') AS v (server_id integer, state text, detail text, host"
        " text, pid integer, attempts integer, group_number bigint, commitscn bigint, dep_group_number bigint,"
        " dep_commitscn bigint, dep_server_id integer)",
        of="v",
    ),
    "dba_apply_dml_handlers": _Made(
        f"{_STATE}, jsonb_to_recordset(s.configuration -> 'dml_handlers') AS h (object_owner text, object_name text,"
        " operation_name text, user_procedure"
        " text, code_version text, error_handler text, handler_type text, handler_name text, statement_number integer,"
        " statement text)",
        of="h",
        since=13,
    ),
    "dba_apply_conflict_history": _Made(
        "headrace.conflict_history h ORDER BY h.number",
        of="h",
        expressions={
            "apply_name": "h.apply",
            "conflict_number": "h.number",
            "source_database": "h.source",
            "source_transaction_id": "h.transaction_id",
            "source_commit_scn": "h.commit_scn",
            "message_number": 'h."position" + 1',
            "object_owner": "h.owner",
            "object_name": "h.name",
            "command_type": "h.command",
            "conflict_type": "h.kind",
            "conflicting_columns": 'h."columns"',
            "method_name": "h.handler",
            "old_values": 'h."old"',
            "new_values": 'h."new"',
            "current_values": 'h."current"',
            "local_transaction_id": "nullif(h.error_number, 0)",
            "resolution_time": "h.resolved_at",
        },
        is_replaced=True,
        since=15,
    ),
    "dba_apply_ddl": _Made("headrace.ddl_history d ORDER BY d.number", of="d", expressions=_DDL, since=20),
    "dba_ddl_not_applied": _Made(
        "headrace.ddl_history d WHERE d.outcome IN ('NOT APPLIED', 'SKIPPED') ORDER BY d.number",
        of="d",
        expressions=_DDL,
        since=20,
    ),
    "dba_ddl_jobs": _Made(
        "headrace.ddl_job d WHERE d.state <> 'CANCELLED' ORDER BY d.number",
        of="d",
        expressions={
            "apply_name": "d.apply",
            "job_number": "d.number",
            "source_database": "d.source",
            "source_transaction_id": "d.transaction_id",
            "message_number": 'd."position" + 1',
            "object_owner": "d.owner",
            "object_name": "d.name",
            "creation_time": "d.added_at",
        },
        since=21,
    ),
    "dba_apply_instantiated_objects": _Made(
        "headrace.instantiation i",
        of="i",
        expressions={
            "apply_name": "i.apply",
            "source_database": "i.source",
            "source_object_owner": "i.owner",
            "source_object_name": "i.name",
            "instantiation_scn": "i.scn",
        },
        is_replaced=True,
        since=15,
    ),
}


def statements(version: int) -> tuple[str, ...]:
    """Return the statements that create the views of a schema version, each followed by its comments."""
    return tuple(
        statement for view in VIEWS if _MADE[view.name].since == version for statement in _of(view, _MADE[view.name])
    )


def _of(view: View, made: _Made) -> tuple[str, ...]:
    columns = ",\n       ".join(f"{_expression(column, made)} AS {column.name}" for column in view.columns)
    replaces = "OR REPLACE " if made.is_replaced else ""
    return (
        f"CREATE {replaces}VIEW headrace.{view.name} AS\nSELECT {columns}\nFROM {made.source}",
        f"COMMENT ON VIEW headrace.{view.name} IS {literal(view.comment)}",
        *(
            f"COMMENT ON COLUMN headrace.{view.name}.{column.name} IS {literal(column.meaning)}"
            for column in view.columns
        ),
    )


def _expression(column: Column, made: _Made) -> str:
    if column.name in made.expressions:
        return made.expressions[column.name]
    if column.constant is not None:
        return f"{literal(column.constant)}::text"
    if made.source.startswith(_STATE) and column.said:
        return _SAID.get(column.said) or _text(column.said, column.kind)
    return f"{made.of}.{column.name}"
