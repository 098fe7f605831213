"""DDL LCRs: views with the manuals' attributes of the change of one table's structure.

Not yet there: DDL handlers, and what only they need: EXECUTE, and the SET methods of a DDL LCR's own attributes.

Source: Oracle Database PL/SQL Packages and Types Reference, LCR$_DDL_RECORD.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from headrace.lcr.lcr_value import LcrError
from headrace.lcr.lcr_view import LcrView

if TYPE_CHECKING:
    from headrace.lcr.batch import LcrBatch
    from headrace.lcr.ddl import DdlChange
    from headrace.lcr.structure import Structure

__all__ = ["DdlLcr"]


class DdlLcr(LcrView):
    """The DDL LCR of a batch.

    Args:
        batch: a batch with a DDL LCR, which is its only one.

    Raises:
        LcrError: the batch has row LCRs, or none.
    """

    __slots__ = ("_change",)

    def __init__(self, batch: LcrBatch) -> None:
        if batch.ddl is None:
            raise LcrError("the batch has no DDL LCR", rows=batch.row_count)
        super().__init__(batch, 0)
        self._change = batch.ddl

    @property
    def change(self) -> DdlChange:
        """The change as the source recorded it."""
        return self._change

    @property
    def command_type(self) -> str:
        """What the client ran, such as ALTER TABLE."""
        return self._change.command_type

    @property
    def object_type(self) -> str:
        """TABLE or INDEX."""
        return self._change.object_type

    @property
    def object_owner(self) -> str:
        """Schema of the object."""
        return self._change.object_owner

    @property
    def object_name(self) -> str:
        """Name of the object: an index, or the table."""
        return self._change.object_name

    @property
    def base_table_owner(self) -> str:
        """Schema of the table."""
        return self._change.base_table_owner

    @property
    def base_table_name(self) -> str:
        """Name of the table."""
        return self._change.base_table_name

    @property
    def ddl_text(self) -> str:
        """What the client sent."""
        return self._change.ddl_text

    @property
    def logon_user(self) -> str:
        """Who was logged on."""
        return self._change.logon_user

    @property
    def current_schema(self) -> str | None:
        """Where names without a schema were looked up first; None: not recorded."""
        return self._change.current_schema or None

    @property
    def edition_name(self) -> None:
        """Always None: PostgreSQL has no editions."""
        return

    @property
    def before(self) -> Structure | None:
        """The table's structure before the statement; None: there was no table, or it is not known."""
        return self._structure("before")

    @property
    def after(self) -> Structure | None:
        """The table's structure after the statement; None: the statement dropped the table."""
        return self._structure("after")

    def _structure(self, side: str) -> Structure | None:
        # A local import: few processes read structures.
        from headrace.lcr.structure import structure_from_json

        value = json.loads(self._change.content)[side]
        return None if value is None else structure_from_json(value)

    def __repr__(self) -> str:
        # No text: statements may have values in them, and a view may end up in a message or a log.
        return (
            f"DdlLcr({self.command_type} {self.object_owner}.{self.object_name}, source={self._source!r}, "
            f"scn={self.scn}, position={self.position})"
        )
