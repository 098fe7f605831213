"""Check that hashes show the dependencies of a batch on earlier batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.lcr.batch import LcrBatch

if TYPE_CHECKING:
    from spark_apply.tables.fits import TableFits

__all__ = ["KeyForms"]

_NO_KEY = (0,)  # in place of a key's seed: 64 bits of a hash
_SEVERAL: tuple[
    int, ...
] = ()  # a key changed its form within a transaction: it must be applied before anything follows


class KeyForms:
    """The forms of the keys hashed since everything was last applied."""

    def __init__(self, fits: TableFits) -> None:
        self._fits = fits
        self._known: dict[int, tuple[int, ...]] = {}  # see `_forms_of`

    def clear(self) -> None:
        """Forget all forms: every admitted batch is applied."""
        self._known.clear()

    def admit(self, batch: LcrBatch) -> bool:
        """Admit a batch if hashes still order it against the admitted ones, and return whether they do.

        Every table must have the same name as in those, every key the same canonical form, and the same key must find
        rows. A large transaction waits for everything before it, and everything after waits for it.

        Args:
            batch: the batch, with the destination's names.
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
        """Map table number -> name hash, key seed -> canonical form, and table -> the key that finds rows.

        A table without such a key maps to `_NO_KEY`: its INSERTs are unordered. Other serialised tables are skipped.

        The key that finds rows changes with the replica identity: rows found by one key have no hashes of the other
        key's old values. A renamed table gets different hashes altogether.
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
            ):  # only use of the table orders its INSERTs: the key that finds rows does not matter
                mine[fit.touch] = _NO_KEY
            for seed, form in mine.items():
                if forms.setdefault(seed, form) != form:
                    forms[seed] = _SEVERAL
        return forms
