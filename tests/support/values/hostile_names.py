"""Valid names of schemas, tables, columns, types, labels, roles and triggers that attack badly quoted statements."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["HOSTILE", "names"]

_BYTES_MAX = 63  # of a name in PostgreSQL
_TAKE = "CREATE TABLE taken()"  # no dot: a type in a schema whose name has one is not found by its name

HOSTILE = (
    f"x\r\n\\! touch taken\n;{_TAKE};",
    f"x', \"; {_TAKE}; --",
    "a DEFERRABLE -/ \t é漢",
    f"x'); {_TAKE}; --",
    f'x"; {_TAKE}; --',
    f"x\n;{_TAKE}; --",
    f"\\'; {_TAKE}; --",
    f"$$;{_TAKE};$a$,$body$ %s %1$I {{}} :x :'x'",
    "x; touch taken; $(touch taken) `touch taken` | touch taken #",
    "--yes",
)
"""Each makes a table or a file `taken`, or breaks a statement, where it is not quoted as it must be."""

_PIECES = (
    "$",
    "$$",
    "$a$",
    "'",
    '"',
    "%",
    "%s",
    "\\",
    "\n",
    "\r",
    "--",
    ";",
    " ",
    ".",
    "{",
    "}",
    ":x",
    "E",
    "é",
    "漢",
    "a",
    "B",
    "0",
    _TAKE,
    "DEFERRABLE",
    "`",
    "|",
    "&",
    "#",
)


def names() -> st.SearchStrategy[str]:
    """Return a strategy for names of one to 63 bytes, without the wildcards of rules and NUL, which no database
    accepts.
    """
    cut = st.lists(st.sampled_from(_PIECES), min_size=1, max_size=8).map("".join)
    return cut.map(lambda text: text.encode()[:_BYTES_MAX].decode(errors="ignore")).filter(bool)
