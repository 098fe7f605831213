"""The option `--faults` of `headrace chaos` and `headrace simulate`: which faults there are to be."""

from __future__ import annotations

from headrace.base.errors import ConfigError

__all__ = ["named_faults"]


def named_faults(text: str, known: frozenset[str], *, words: tuple[str, ...] = ("all",)) -> frozenset[str]:
    """Read names separated by commas, or a word for all or none of them.

    Args:
        text: of the option.
        known: the faults that there are.
        words: that the command takes, of "all" and "none".

    Raises:
        ConfigError: there is no such fault.
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
