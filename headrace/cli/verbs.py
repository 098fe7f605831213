"""Common behaviour of all verbs: verbs that change something are recorded with who ran them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.audit.verbs import noting
from headrace.console.output import Output

__all__ = ["ErrorVerbs", "Verb", "Verbs"]


class Verb(TyperCommand):
    """A verb of the command line.

    Verbs that change what runs, or rows, are recorded with who ran them (`headrace.audit`).
    """

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - of typer's own click
        """Run the verb, recorded if it changes something."""
        words: list[str] = []
        above = ctx
        while above.parent is not None:  # the outermost has the program's name
            words, above = [above.info_name, *words], above.parent
        Output.file = ctx.params.get("file") or ""
        with noting(" ".join(words), ctx.params, Output().say) as returned:
            code = super().invoke(ctx)
            returned(code)
            return code


class Verbs(typer.Typer):
    """A command line all of whose verbs are `Verb`."""

    def command(
        self,
        name: str | None = None,
        *,
        cls: type[TyperCommand] | None = Verb,
        **settings: Any,  # noqa: ANN401 - typer's
    ) -> Callable[..., Any]:
        """Register a verb."""
        return super().command(name, cls=cls, **settings)


class ErrorVerbs(TyperGroup):
    """`headrace errors FILE` lists the error transactions: like every other verb, it takes the file next."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - of typer's own click
        """Insert the verb `list` before a file."""
        if args and args[0] not in self.commands and args[0].endswith((".yaml", ".yml")):
            args = ["list", *args]
        return super().resolve_command(ctx, args)
