"""A process's current call of a user's transformation function, in a file that outlives the process.

A function that ends its process (`os._exit`, a fault in a compiled module) leaves no error, and every later process
would call it for the same LCR again. The current call is in a mapped page: it costs no system call, and the page
survives the process.

    dies in a call -> the next process finds it unfinished: one -> dies in it -> two -> dies in it -> three: the
    function is not called for this LCR again, and the client stops with an error that names it

A call of another version of the function is another call. A power failure may lose the page: then counting starts anew.

Clients that share a process (`actors.hosting.processes`) all find their calls unfinished when it ends, even if their
functions are sound. So calls in which a process ended are then made one at a time: the next end identifies the function
that was running.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CRASHES_MAX", "LastCall"]

CRASHES_MAX = 3
"""Bound of the ends of processes, or of sessions, in one call of a user's function.

A kill, or running out of memory next to others, is not the function's fault, so a single end is not enough.
"""

_CALL = struct.Struct("<16sQI")  # function, SCN, position of the LCR in its transaction
_COUNT = struct.Struct("<I")
_IS_CALLING, _CALLING, _SUSPECT, _ENDS = 0, 4, 4 + _CALL.size, 4 + 2 * _CALL.size
_SIZE = _ENDS + _COUNT.size
_SUSPECTED = threading.Lock()  # held by one client of this process during a call in which a process ended before
# Bound of a wait for that lock: a function has half of it by default, and one that hangs in the kernel must not hold up
# other clients for ever.
_WAIT_S = 60.0


class LastCall:
    """The file of one client. Not shared between threads, nor between clients that exist at the same time.

    Args:
        file: created with the first call.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._page: mmap.mmap | None = None
        self._names: dict[str, bytes] = {}
        self._suspect = b""  # the call in which processes ended
        self._ends = 0
        self._is_alone = False  # it holds `_SUSPECTED`
        self.late = ""
        """What is known of a call that exceeded its time and does not end; read from other threads."""

    def begin(self, function: str, scn: int, position: int) -> int:
        """Record a call before it is made; return how many processes in a row ended in exactly this one.

        Waits while another client makes a call in which a process ended.

        Args:
            function: name and version.
            scn: SCN of the LCR.
            position: place of the LCR in its transaction, from 0.
        """
        page = self._page if self._page is not None else self._open()
        name = self._names.get(function)
        if name is None:
            name = self._names[function] = hashlib.blake2b(function.encode(), digest_size=16).digest()
        call = _CALL.pack(name, scn, position)
        ends = self._ends if call == self._suspect else 0
        if ends:
            self._is_alone = _SUSPECTED.acquire(timeout=_WAIT_S)  # before the call is recorded: it has not begun
        page[_CALLING : _CALLING + _CALL.size] = call
        page[_IS_CALLING] = 1
        return ends

    def end(self, *, refused: bool = False) -> None:
        """Record that the call returned or raised.

        Args:
            refused: the call was not made, because processes ended in it: that record stays.
        """
        self.late = ""
        page = self._page
        assert page is not None, "no call was noted"
        page[_IS_CALLING] = 0
        self._make_way()
        if self._ends and not refused and page[_CALLING : _CALLING + _CALL.size] == self._suspect:
            self._suspect, self._ends = b"", 0
            _COUNT.pack_into(page, _ENDS, 0)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self._page is not None:
            self._page.close()
            self._page = None
        self._make_way()

    def _make_way(self) -> None:
        """Release the lock, so that another client can make a call in which a process ended."""
        if self._is_alone:
            self._is_alone = False
            _SUSPECTED.release()

    def _open(self) -> mmap.mmap:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a+b") as file:
                # Written, not only extended: a page without room on a full disk would end the process.
                file.write(bytes(max(0, _SIZE - file.seek(0, os.SEEK_END))))
                file.flush()
                page = self._page = mmap.mmap(file.fileno(), _SIZE)
        except OSError:  # a full or read-only disk stops no function; nothing outlives this process then
            page = self._page = mmap.mmap(-1, _SIZE)
        suspect, ends = page[_SUSPECT:_ENDS], int(_COUNT.unpack_from(page, _ENDS)[0])
        if page[_IS_CALLING]:
            calling = page[_CALLING:_SUSPECT]
            suspect, ends = calling, ends + 1 if calling == suspect else 1
            page[_SUSPECT:_ENDS] = suspect
            _COUNT.pack_into(page, _ENDS, ends)
            page[_IS_CALLING] = 0
        self._suspect, self._ends = suspect, ends
        return page
