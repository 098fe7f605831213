"""The refusal of a source, and the identity of its prepared log, recorded next to its redo log.

Two faults of a source show up once and then hide. First, a database that was restored to an earlier state has a log
that ends before the redo log, or lacks redo's last transaction. Later its new log has passed that place, and new
transactions have taken the old numbers. Second, the definition of the captured changes (the publication) may be dropped
or altered, and then recreated; changes in between are missing.

So the first refusal is durable: after a restart the other log must not pass for a continuation of the old one. Both
files are removed with the redo log (`headrace down --purge`); the second one also when the site ends as a source.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.base.durable_file import replace_file
from headrace.base.errors import INSTANTIATE_AGAIN, CapturedNoMore, LogGone

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["SourceRefusal"]


class SourceRefusal:
    """The two files of one redo log.

    Args:
        folder: the redo log's folder.
        component: full name of the site's component.
    """

    def __init__(self, folder: Path, component: str) -> None:
        self._component = component
        self._refused, self._prepared = folder / "refused.json", folder / "prepared_as.json"

    def check(self) -> None:
        """Refuse the source if it was refused before.

        Raises:
            LogGone: it was.
        """
        try:
            found = json.loads(self._refused.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        raise LogGone(
            f"the source was refused before: {found['message']}",
            hint=f"{found['hint']}. If no change can be missing (the database's own disk is back, or the dsn led"
            f" elsewhere), remove {self._refused} and start the site: `headrace start FILE {self._component}`",
        )

    def record(self, refused: LogGone) -> None:
        """Record a refusal; `check` raises it from now on."""
        if not self._refused.exists():
            self._write(self._refused, {"message": refused.message, "hint": refused.hint})

    @property
    def was_prepared(self) -> bool:
        """Whether this redo log is of a source that was prepared and has not ended.

        The answer does not need the site's own file.
        """
        return self._prepared.exists()

    def end(self) -> None:
        """Note that the site is no source any more: the redo here is useless."""
        self._prepared.unlink(missing_ok=True)

    def check_prepared(self, identity: str) -> None:
        """Check that the definition of the captured changes is the one with which redo began.

        Args:
            identity: identity from `SourceDatabase.check_prepared`.

        Raises:
            CapturedNoMore: it was recreated meanwhile.
        """
        try:
            known = json.loads(self._prepared.read_text(encoding="utf-8"))["identity"]
        except FileNotFoundError:
            self._write(self._prepared, {"identity": identity})
            return
        if known != identity:
            raise CapturedNoMore(
                f"the captured changes at the source are defined by {identity}, which was {known} before: it was dropped"
                " and recreated, and changes in between may be missing",
                hint=INSTANTIATE_AGAIN,
            )

    def _write(self, file: Path, fields: dict[str, str]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(fields) + "\n")
