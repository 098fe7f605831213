"""Seeds of random tests: the same ones in `make test`, new ones each time in `make soak`.

The head of a session prints its seed.

HEADRACE_TEST_SEED decides: unset, the seeds are fixed; a number repeats a session that printed it; `new` draws one. A
test that runs in both lanes has the marker `seeded`.
"""

from __future__ import annotations

import os
import secrets
import zlib

__all__ = ["NEW", "SEED", "draw_session_seed", "is_soak", "scaled", "seed_of", "seeds", "session_seed"]

SEED = "HEADRACE_TEST_SEED"
NEW = "new"
FIXED = 0
_BITS = 32


def draw_session_seed() -> None:
    """Draw the session's seed if a new one is wanted, for this process and its children."""
    if os.environ.get(SEED) == NEW:
        os.environ[SEED] = str(secrets.randbits(_BITS))


def session_seed() -> int:
    """Return the number from which every seed of this session follows."""
    return int(os.environ.get(SEED) or FIXED)


def is_soak() -> bool:
    """Return whether random tests run long."""
    return session_seed() != FIXED


def seed_of(what: str) -> int:
    """Return the seed of a test, or of one of its histories.

    Args:
        what: its name, and which history.
    """
    return zlib.crc32(f"{session_seed()} {what}".encode())


def seeds(what: str, *, test: int, soak: int) -> list[int]:
    """Return the seeds of a test's histories: 0, 1, 2 and so on in `make test`, new ones in `make soak`.

    Args:
        what: the test's name.
        test: how many in `make test`.
        soak: how many in `make soak`.
    """
    return [seed_of(f"{what} {number}") for number in range(soak)] if is_soak() else list(range(test))


def scaled(test: int, soak: int) -> int:
    """Return how many histories a test runs.

    Args:
        test: in `make test`.
        soak: in `make soak`.
    """
    return soak if is_soak() else test
