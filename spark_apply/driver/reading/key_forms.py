"""Whether hashes show the dependencies of a batch on what went before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.batch import LcrBatch

if TYPE_CHECKING:
    from spark_apply.tables.fits import TableFits

__all__ = ["KeyForms"]

_NO_KEY = (0,)  # in place of a key's seed: 64 bits of a hash
_SEVERAL: tuple[int, ...] = ()  # a key changed its form within a transaction: nothing may follow before it is applied


class KeyForms:
    """The forms in which keys were hashed since everything was applied.

    Args:
        fits: fits of the destination's tables.
    """

    def __init__(self, fits: TableFits) -> None:
        self._fits = fits
        self._known: dict[int, tuple[int, ...]] = {}  # see `_forms_of`

    def clear(self) -> None:
        """Everything that was passed on is applied."""
        self._known.clear()

    def admit(self, batch: LcrBatch) -> bool:
        """Whether hashes still order this batch behind those that were admitted; if so, it is one of them.

        Every table must have the same name as there, every key the same canonical form, and the same one find rows.

        A large transaction waits for everything before it, and everything after waits for it.

        Args:
            batch: with the destination's names.
        """
        forms = self._forms_of(batch)
        if not (batch.is_open or batch.continues):
            several = len(batch.transactions) > 1
            for seed, form in forms.items():
                if self._known.get(seed, form) != form or (form == _SEVERAL and (several or seed in self._known)):
                    return False
        self._known.update(forms)
        return True

    def _forms_of(self, batch: LcrBatch) -> dict[int, tuple[int, ...]]:
        """What each table is called, by its number.

        Canonical form of each key, by its seed, and the key that finds rows, by its table (none: its INSERTs are in no
        order); without tables whose transactions run serially anyway.

        That key changes with the replica identity: rows that are found by one have no hashes of the other's old values.
        All hashes of a table are others under another name.
        """
        forms: dict[int, tuple[int, ...]] = {}
        used = {group.table for group in batch.groups} | {
            table for truncate in batch.truncates for table in truncate.tables
        }
        for table in sorted(used):
            fit = self._fits.fit_or_error(batch.tables[table])
            number = int(fit.version.table_number)
            mine: dict[int, tuple[int, ...]] = {-number: (fit.touch,)} if number else {}
            if not fit.is_serialised:
                mine[fit.touch] = (fit.hashed_keys[0].seed,)
                mine |= {key.seed: key.equalities for key in fit.hashed_keys}
            elif (
                fit.has_free_inserts
            ):  # only use of the table shows them: what is found by a key does not depend on that
                mine[fit.touch] = _NO_KEY
            for seed, form in mine.items():
                if forms.setdefault(seed, form) != form:
                    forms[seed] = _SEVERAL
        return forms
