"""Configuration and state of an apply process as plain data, for the views of the destination.

Names follow the manuals' columns; `headrace.databases.destination_views` reads them by name. There are no row values
and no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.databases.destination_views import time_text
from headrace.rules.clients_before import ClientsBefore
from headrace.rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition
from headrace.rules.transformations.transformation import (
    AddColumn,
    DeleteColumns,
    KeepColumns,
    Operation,
    RenameColumn,
    RenameSchema,
    RenameTable,
    Transformation,
)

if TYPE_CHECKING:
    from headrace.lcr.table_name import TableName
    from headrace.rules.user_code.handlers import HandlerRules
    from headrace.rules.user_code.source import UserFunction
    from spark_apply.apply_config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.reader import ApplyReader
    from spark_apply.driver.server_streams import ServerFacts

__all__ = ["configuration_of", "said_of", "state_of"]


def configuration_of(config: ApplyConfig) -> dict[str, Any]:
    """Return what does not change while an apply process runs: its source, parameters, rules and column lists."""
    return {
        "queue_name": config.queue,
        "source_database": config.source.site,
        "apply_tag": config.tag.hex() or None,
        "parameters": _parameters(config),
        "transformations": _transformations(config),
        "rules": [rule for rules in config.rules for each in _sets(rules) for rule in _rules(each)],
        "conflict_columns": [
            {
                "object_owner": each.owner,
                "object_name": each.name,
                "conflict_type": each.kind,
                "method_name": each.method,
                "resolution_column": each.resolution_column or None,
                "column_name": column,
            }
            for each in config.conflicts.handlers
            for column in (each.columns or (None,))
        ],
        "dml_handlers": list(_handlers(config.handlers)),
        "key_columns": [
            {"object_owner": each.owner, "object_name": each.name, "column_name": column}
            for each in config.destination.tables.key_columns
            for column in each.columns
        ],
    }


def state_of(
    status: str, coordinator: ApplyCoordinator, reader: ApplyReader, servers: Iterable[ServerFacts], problem: str = ""
) -> dict[str, Any]:
    """Return the current state of an apply process.

    Args:
        status: ENABLED, DISABLED or ABORTED.
        coordinator: its coordinator; the caller is on the coordinator's thread.
        reader: its reader, read on the same thread.
        servers: facts about its apply servers.
        problem: why it ended; empty: it runs, or an operator stopped it.
    """
    seen = reader.statistics
    if status == "ENABLED" and coordinator.errors.disables:
        status, problem = (
            "ABORTED",
            f"error transaction {coordinator.first_error} is in the error queue (on_error: disable)",
        )
    return {
        "status": status,
        "error_message": problem or None,
        "coordinator": coordinator.status(),
        "reader": {
            "state": reader.state,
            "total_messages_dequeued": seen.rows,
            "total_transactions_dequeued": seen.transactions,
            "total_batches_dequeued": seen.batches,
            "total_rows_discarded": seen.rows_discarded,
        },
        "servers": [
            {
                "server_id": each.server,
                "state": each.state,
                "detail": each.detail or None,
                "host": each.host or None,
                "pid": each.pid or None,
                "attempts": each.attempts,
                **coordinator.dependency_of(each.server),
            }
            for each in servers
        ],
    }


def said_of(
    config: ApplyConfig,
    epoch: int,
    configuration: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    observed_us: int,
    applied_us: int,
) -> dict[str, Any]:
    """Return the input of `headrace.databases.destination_views.rows_said`, which makes view rows without the database.

    Args:
        config: configuration of the apply process.
        epoch: epoch of its driver.
        configuration: result of `configuration_of`.
        state: result of `state_of`.
        observed_us: when `state` was read, in microseconds since the epoch.
        applied_us: when the driver last learned that the recorded low watermark moved, in microseconds since the epoch;
            0: not since it started.
    """
    known = state["coordinator"]
    return {
        "topology": config.topology,
        "apply_name": config.apply,
        "epoch": epoch,
        "observed_time": time_text(observed_us),
        "configuration": configuration,
        "state": state,
        "progress": {
            "epoch": epoch,
            "applied_message_number": known["durable_scn"],
            "oldest_message_number": known["durable_scn"],
            "apply_time": time_text(applied_us),
            "servers": known["active_server_count"],
            "applied_message_create_time": time_text(known["last_commit_time_us"]),
        },
    }


def _parameters(config: ApplyConfig) -> dict[str, str]:
    tables, conflicts = config.destination.tables, config.conflicts
    checked = ", ".join(f"{owner}.{name}" for owner, name in tables.foreign_keys_of)
    return {
        "allow_duplicate_rows": _flag(tables.allow_duplicate_rows is True),
        "check_foreign_keys": checked if tables.check_foreign_keys and checked else _flag(tables.check_foreign_keys),
        "column_mismatch": tables.column_mismatch.upper(),
        "commit_serialization": "FULL" if config.commits_in_order else "DEPENDENT_TRANSACTIONS",
        "compare_key_only": _flag(conflicts.compare_key_only),
        "conflict_history_age_s": _number(conflicts.history.age_s),
        "conflict_history_count": str(conflicts.history.count),
        "detached_partitions": tables.detached_partitions.upper(),
        "disable_on_error": _flag(config.on_error.name == "DISABLE"),
        "group_rows": str(config.group_rows),
        "group_transactions": str(config.group_transactions),
        "handler_timeout_s": _number(config.handlers.timeout_s),
        "on_error": config.on_error.name,
        "parallelism": str(config.parallelism),
        "synchronous_commit": "off" if config.commits_lazily else "on",
    }


def _handlers(rules: HandlerRules) -> Iterator[dict[str, Any]]:
    """Yield one row per table, operation and function or statement, in the order of the file."""
    for place, handler in enumerate(rules.dml):
        for operation in handler.operations:
            of = {
                "object_owner": handler.owner,
                "object_name": handler.name,
                "operation_name": operation.upper(),
                "error_handler": "N",
            }
            if handler.function is not None:
                yield {**of, "handler_type": "PROCEDURE HANDLER", **_function(handler.function)}
            for number, each in enumerate(handler.statements, 1):
                named = {
                    "handler_name": f"dml_handlers[{place}]",
                    "statement_number": number,
                    "statement": each.text or each.sql,
                }
                yield {**of, "handler_type": "STMT HANDLER", **named}
    for error in rules.errors:
        for operation in error.operations:
            of = {
                "object_owner": error.owner,
                "object_name": error.name,
                "operation_name": operation.upper(),
                "error_handler": "Y",
            }
            yield {**of, "handler_type": "ERROR HANDLER", **_function(error.function)}
    if rules.precommit is not None:
        yield {"handler_type": "PRECOMMIT HANDLER", "error_handler": "N", **_function(rules.precommit)}


def _function(function: UserFunction) -> dict[str, str]:
    return {"user_procedure": function.name, "code_version": function.version}


def _flag(value: bool) -> str:  # noqa: FBT001 - the manuals' Y and N
    return "Y" if value else "N"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _sets(rules: RuleSet | ClientsBefore) -> tuple[RuleSet, ...]:
    return rules.at_most if isinstance(rules, ClientsBefore) else (rules,)


def _rules(rules: RuleSet) -> list[dict[str, Any]]:
    return [
        *(_rule("POSITIVE", rule) for rule in rules.include or ()),
        *(_rule("NEGATIVE", rule) for rule in rules.exclude),
    ]


def _rule(kind: str, rule: Rule) -> dict[str, Any]:
    return {
        "rule_set_type": kind,
        "schema_name": rule.owner,
        "object_name": rule.name,
        "include_tagged_lcr": "NO" if rule.tags == UNTAGGED else "YES",
        "tag_condition": _tags(rule.tags),
        "rule_condition": None if rule.condition is None else str(rule.condition),
        "dml_condition": None if rule.subset is None else str(rule.subset),
    }


def _transformations(config: ApplyConfig) -> list[dict[str, Any]]:
    """Return every transformation step of each table, one row per column."""
    found: list[dict[str, Any]] = []
    for table in config.tables:
        name = table.source
        for client, each in enumerate(table.transformations, 1):
            steps: list[dict[str, Any]] = []
            for operation in each.operations:
                steps += _operation(name, operation)
                name = Transformation(operations=(operation,)).named(name)
            if each.custom is not None:
                steps += [
                    {
                        "from_column_name": column,
                        "user_function_name": each.custom.function.name,
                        "version": each.custom.function.version,
                    }
                    for column in (each.custom.columns or (None,))
                ]
            found += [
                {
                    "rule_owner": table.source.owner,
                    "rule_name": table.source.name,
                    "client_number": client,
                    "step_number": number,
                    "transform_type": "CUSTOM TRANSFORMATION"
                    if "user_function_name" in step
                    else "DECLARATIVE TRANSFORMATION",
                    **step,
                }
                for number, step in enumerate(steps, 1)
            ]
    return found


def _operation(table: TableName, operation: Operation) -> list[dict[str, Any]]:
    match operation:
        case KeepColumns():
            return [
                {"declarative_type": "KEEP COLUMNS", "precedence": 0, "from_column_name": each, "to_column_name": each}
                for each in operation.kept
            ]
        case DeleteColumns():
            return [
                {"declarative_type": "DELETE COLUMN", "precedence": 1, "from_column_name": each}
                for each in operation.deleted
            ]
        case RenameColumn():
            return [
                {
                    "declarative_type": "RENAME COLUMN",
                    "precedence": 2,
                    "from_column_name": operation.before,
                    "to_column_name": operation.after,
                }
            ]
        case AddColumn():
            return [
                {
                    "declarative_type": "ADD COLUMN",
                    "precedence": 3,
                    "to_column_name": operation.name,
                    "column_value": operation.value,
                    "column_type": operation.type_name,
                    "column_function": "CURRENT_TIMESTAMP" if operation.is_now else None,
                }
            ]
        case RenameTable():
            to = {"to_schema_name": operation.owner, "to_table_name": operation.name}
            return [
                {
                    "declarative_type": "RENAME TABLE",
                    "precedence": 4,
                    "from_schema_name": table.owner,
                    "from_table_name": table.name,
                    **to,
                }
            ]
        case RenameSchema():
            return [
                {
                    "declarative_type": "RENAME SCHEMA",
                    "precedence": 5,
                    "from_schema_name": table.owner,
                    "to_schema_name": operation.owner,
                }
            ]


def _tags(tags: TagCondition) -> str | None:
    if tags == ANY_TAG:
        return None
    listed = ", ".join("NULL" if tag is None else tag.hex() for tag in tags.listed)
    return f"{'in' if tags.takes_listed else 'not in'} ({listed})"
