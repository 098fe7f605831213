"""The pages of `docs` whose blocks of YAML and Python are run, and these blocks."""

from __future__ import annotations

import re
import textwrap

from tests.support.session.packages import ROOT

__all__ = ["GUIDES", "blocks"]

DOCS = ROOT / "docs"
GUIDES = {
    file.stem: file
    for file in (
        *(DOCS / "how" / f"{name}.md" for name in ("conflicts", "errors", "order", "proof", "processes", "durability")),
        *(DOCS / "reference" / f"{name}.md" for name in ("rules", "handlers", "keys")),
        *sorted((DOCS / "tasks").glob("*.md")),
    )
}


def blocks(kind: str) -> list[tuple[str, str]]:
    """(guide and number of the block in it, text) of every block of a language."""
    found = []
    for guide, file in GUIDES.items():
        # In a list a block is indented.
        pieces = re.findall(rf"^( *)```{kind}\n(.*?)^\1```", file.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        found += [(f"{guide} {number}", textwrap.dedent(each)) for number, (_, each) in enumerate(pieces, 1)]
    return found
