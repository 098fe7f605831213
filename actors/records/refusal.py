"""The refusal of a combined apply process, kept for the capture process's next life.

A refused apply process aborts and does not subscribe again before an operator acts. A capture process that opens again learns of the
refusal only from this file; without it, redo would be held for the apply process without end.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from actors.records.files import component_file
from streams.durable_file import replace_file, sync_folder
from streams.errors import CaptureError
from streams.scn import Scn

__all__ = ["Refusal"]

log = logging.getLogger("headrace")


class Refusal:
    """The file of one capture process.

    Args:
        state_dir: of the topology.
        capture: name of the capture process.
        apply: name of the apply process that it is combined with; the refusal of another one does not count.
    """

    def __init__(self, state_dir: Path, capture: str, apply: str) -> None:
        self._file = component_file(state_dir, f"capture:{capture}", ".refusal.json")
        self._apply = apply
        self._gone_scn = self._read()

    @property
    def gone_scn(self) -> Scn | None:
        """Changes up to here that the apply process lacks are gone, and it is refused; None: it is not."""
        return self._gone_scn

    def record(self, gone_scn: Scn | None) -> None:
        """See `actors.combined.RefusalRecord.record`.

        Args:
            gone_scn: changes up to here are gone; None: the apply process is not refused, or not any more.

        Raises:
            CaptureError: it could not be written; what was recorded before holds.
        """
        try:
            if gone_scn is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._file, json.dumps({"apply": self._apply, "gone_scn": gone_scn}) + "\n")
            elif self._file.exists():
                self._file.unlink()
                sync_folder(self._file.parent)
        except OSError as error:
            raise CaptureError(
                f"{self._file.name} cannot be written: {error.strerror or error}", hint="check the disk; once there is space, retrying is automatic",
            ) from error
        self._gone_scn = gone_scn

    def _read(self) -> Scn | None:
        try:
            document = json.loads(self._file.read_text(encoding="utf-8"))
            return Scn(int(document["gone_scn"])) if document["apply"] == self._apply else None
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            # The capture process then holds redo for the apply process, and refuses it again when it subscribes.
            log.warning("%s is damaged and is ignored: %s", self._file, error)
            return None
