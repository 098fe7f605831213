"""Custom transformations of the text of a function."""

from __future__ import annotations

from headrace.rules.transformations.custom import CustomTransformation
from headrace.rules.user_code.source import UserFunction
from tests.support.apply.handlers import code_of

__all__ = ["custom"]


def custom(
    text: str,
    name: str = "own:mask",
    *,
    is_at_capture: bool = False,
    timeout_s: float = 30.0,
    columns: tuple[str, ...] | None = None,
):
    code = code_of(text)
    return CustomTransformation(
        function=UserFunction(name=name, version=code.version_of(name)),
        code=code,
        is_at_capture=is_at_capture,
        timeout_s=timeout_s,
        columns=columns,
    )
