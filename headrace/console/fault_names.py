"""The option `--faults` of `headrace chaos` and `headrace simulate`."""

from __future__ import annotations

from headrace.base.errors import ConfigError

__all__ = ["named_faults"]


def named_faults(text: str, known: frozenset[str], *, words: tuple[str, ...] = ("all",)) -> frozenset[str]:
    """Parse names separated by commas, or a word for all or none of them.

    Args:
        text: the option's value.
        known: the faults that exist.
        words: the words that the command accepts, of "all" and "none".

    Raises:
        ConfigError: no such fault exists.
    """
    if text in words:
        return known if text == "all" else frozenset()
    names = frozenset(name.strip() for name in text.split(","))
    if unknown := sorted(names - known):
        raise ConfigError(
            f"--faults: there is no fault {', '.join(map(repr, unknown))}",
            hint=f"{', '.join(words)}, or some of: {', '.join(sorted(known))}",
        )
    return names
