"""Checking a part of the file against its shape; pydantic's errors become findings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headrace.databases.ports import Finding
from topology.file.document import Document, Path_
from topology.file.shape.models import Model
from topology.file.shape.values import BUILT_LATER, shown
from topology.problems import nearest

__all__ = ["read_shape"]

M = TypeVar("M", bound=Model)


def read_shape(model: type[M], content: object, path: Path_, document: Document) -> M | None:
    """Check one part of the file against its shape; add problems to the document's findings.

    Args:
        model: the shape.
        content: the part, as plain data.
        path: its place in the file.
        document: the file.

    Returns:
        The part, or None when it has problems.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            inner = tuple(part for part in details["loc"] if not str(part).startswith("function-"))
            problem, fix = _describe(details, _model_at(model, inner[:-1]))
            document.findings.append(Finding(path=document.locate(path + inner), problem=problem, fix=fix))
        return None


def _describe(details: ErrorDetails, model: type[Model] | None) -> tuple[str, str]:
    """Return problem and fix for one of pydantic's errors."""
    kind, context, value = details["type"], details.get("ctx", {}), details["input"]
    if kind == "headrace":
        return str(context["problem"]), str(context["fix"])
    if kind == "extra_forbidden":
        key = str(details["loc"][-1])
        if model is not None and key in model.not_yet:
            return f"this key is known but {BUILT_LATER} built", model.not_yet[key]
        return "there is no such key", nearest(key, _keys(model) if model else ())
    if kind == "missing":
        return "is missing", "add it"
    if kind == "literal_error":
        return _describe_choice(value, str(context["expected"]))
    if kind.startswith(("greater_than", "less_than")):
        bound = next(iter(context.values()))
        words = {"greater_than": "more than", "greater_than_equal": "at least", "less_than_equal": "at most"}
        return f"{value!r} is out of range", f"write {words.get(kind, 'less than')} {bound:g}"
    if kind in {"too_short", "too_long", "string_too_short"}:
        return _describe_length(kind, context)
    return f"{shown(value)} is not {_EXPECTED.get(kind, 'of the right kind')}", _EXAMPLES.get(
        kind, "see docs/reference/file.md"
    )


def _describe_length(kind: str, context: Mapping[str, Any]) -> tuple[str, str]:
    if kind == "too_long":
        return f"has {context['actual_length']} entries", f"write {context['max_length']} at most"
    if kind == "string_too_short" or not context["actual_length"]:
        return (
            "is empty",
            "write a name" if kind == "string_too_short" else f"write {_entries(context['min_length'])} at least",
        )
    return f"has {_entries(context['actual_length'])}", f"write {context['min_length']} at least"


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


_EXPECTED = {
    "string_type": "a text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
_EXAMPLES = {
    "string_type": "write a word, in quotes if YAML reads it as something else",
    "bool_type": "write true or false",
    "int_type": "write digits, without quotes",
    "float_type": "write a number, without quotes",
    "list_type": "write [one, two]",
    "dict_type": "write {key: value}",
    "model_type": "write {key: value}",
    "model_attributes_type": "write {key: value}",
}
_DATABASES_LATER = ("mysql", "mariadb", "sqlite", "duckdb")


def _describe_choice(value: object, expected: str) -> tuple[str, str]:
    choices = [choice.strip().strip("'") for choice in re.split(r",| or ", expected) if choice.strip()]
    if value in _DATABASES_LATER:
        return f"{value!r} is known but {BUILT_LATER} built", f"write one of {', '.join(choices)}"
    close = get_close_matches(str(value), choices, n=1)
    return (
        f"{shown(value)} is not one of {', '.join(choices)}",
        f"did you mean {close[0]!r}?" if close else "write one of these",
    )


def _keys(model: type[Model]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[Model], path: Path_) -> type[Model] | None:
    """Return the model of the value at `path` below `model`, if it has one."""
    current: type[Model] | None = model
    for part in path:
        if isinstance(part, int):
            continue
        if current is None:
            return None
        by_key = {field.alias or name: field.annotation for name, field in current.model_fields.items()}
        current = _model_in(by_key.get(part))
    return current


def _model_in(annotation: object) -> type[Model] | None:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return annotation
    return next((found for argument in get_args(annotation) if (found := _model_in(argument))), None)
