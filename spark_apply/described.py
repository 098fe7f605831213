"""What an apply process is and how it is doing, as plain data: what the views of the destination show.

Names follow the manuals' columns; `databases.postgres.views` reads them by name. No row values, no secrets.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rules.rule import ANY_TAG, UNTAGGED, Rule, RuleSet, TagCondition

if TYPE_CHECKING:
    from spark_apply.driver.config import ApplyConfig
    from spark_apply.driver.coordinator import ApplyCoordinator
    from spark_apply.driver.reader import ApplyReader
    from spark_apply.driver.server_streams import ServerFacts

__all__ = ["configuration_of", "state_of"]


def configuration_of(config: ApplyConfig) -> dict[str, Any]:
    """What does not change while an apply process runs: where it applies from, its parameters, rules and column lists."""
    return {
        "queue_name": config.queue, "source_database": config.source.site, "apply_tag": config.tag.hex() or None,
        "parameters": {
            "allow_duplicate_rows": _flag(config.destination.tables.allow_duplicate_rows is True), "column_mismatch": config.destination.tables.column_mismatch.upper(), "commit_serialization": "DEPENDENT_TRANSACTIONS", "compare_key_only": _flag(config.conflicts.compare_key_only),
            "disable_on_error": _flag(config.on_error.name == "DISABLE"), "group_rows": str(config.group_rows),
            "group_transactions": str(config.group_transactions), "on_error": config.on_error.name, "parallelism": str(config.parallelism),
        },
        "rules": [rule for rules in config.rules for rule in _rules(rules)],
        "conflict_columns": [
            {
                "object_owner": each.owner, "object_name": each.name, "conflict_type": each.kind, "method_name": each.method,
                "resolution_column": each.resolution_column or None, "column_name": column,
            }
            for each in config.conflicts.handlers for column in (each.columns or (None,))
        ],
        "key_columns": [
            {"object_owner": each.owner, "object_name": each.name, "column_name": column}
            for each in config.destination.tables.key_columns for column in each.columns
        ],
    }


def state_of(status: str, coordinator: ApplyCoordinator, reader: ApplyReader, servers: Iterable[ServerFacts], problem: str = "") -> dict[str, Any]:
    """How an apply process is doing at this moment.

    Args:
        status: ENABLED, DISABLED or ABORTED.
        coordinator: asked on its own thread.
        reader: as the coordinator.
        servers: facts about its apply servers.
        problem: why it ended; empty: it did not, or was stopped.
    """
    seen = reader.statistics
    if status == "ENABLED" and coordinator.is_disabled:
        status, problem = "ABORTED", f"error transaction {coordinator.first_error} is in the error queue (on_error: disable)"
    return {
        "status": status, "error_message": problem or None, "coordinator": coordinator.status(),
        "reader": {
            "state": reader.state, "total_messages_dequeued": seen.rows, "total_transactions_dequeued": seen.transactions,
            "total_batches_dequeued": seen.batches, "total_rows_discarded": seen.rows_discarded,
        },
        "servers": [
            {
                "server_id": each.server, "state": each.state, "detail": each.detail or None, "host": each.host or None, "pid": each.pid or None,
                "attempts": each.attempts, **coordinator.dependency_of(each.server),
            }
            for each in servers
        ],
    }


def _flag(value: bool) -> str:  # noqa: FBT001 - the manuals' Y and N
    return "Y" if value else "N"


def _rules(rules: RuleSet) -> list[dict[str, Any]]:
    return [
        *(_rule("POSITIVE", rule) for rule in rules.include or ()), *(_rule("NEGATIVE", rule) for rule in rules.exclude),
    ]


def _rule(kind: str, rule: Rule) -> dict[str, Any]:
    return {
        "rule_set_type": kind, "schema_name": rule.owner, "object_name": rule.name, "include_tagged_lcr": "NO" if rule.tags == UNTAGGED else "YES",
        "tag_condition": _tags(rule.tags), "rule_condition": None if rule.condition is None else str(rule.condition),
        "dml_condition": None if rule.subset is None else str(rule.subset),
    }


def _tags(tags: TagCondition) -> str | None:
    if tags == ANY_TAG:
        return None
    listed = ", ".join("NULL" if tag is None else tag.hex() for tag in tags.listed)
    return f"{'in' if tags.takes_listed else 'not in'} ({listed})"
