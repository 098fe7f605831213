"""Settings for resolving the conflicts of an apply process."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.rules.conflict_handlers import NO_CONFLICT_RULES, ConflictRules
from spark_apply.sets.row_images import ShowValue, show_raw

__all__ = ["ConflictSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConflictSettings:
    """Settings for resolving the conflicts of one apply process.

    Args:
        apply: name of the apply process.
        source: the site whose transactions it applies.
        site: its own site.
        rules: its conflict handlers.
        show: formats an LCR's value.
    """

    apply: str
    source: str
    site: str = ""
    rules: ConflictRules = NO_CONFLICT_RULES
    show: ShowValue = show_raw
