"""Where a topology file's secrets come from: a variable of the environment, a file, or what a program prints.

A reference is `${NAME}`, `${file:/run/secrets/name}` or `${command:program argument ...}`. A program is run without a
shell, each time the file is read: who may write a topology file may run code as its user in any case (handlers,
alerts).
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["REFERENCE", "SecretError", "read_secrets", "references", "with_plain_names"]

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|(?:file|command):[^}]+)\}")
_BYTES_MAX = 64 << 10  # a connection string has some hundred
_COMMAND_TIMEOUT_S = 30.0  # a vault over a network answers within seconds; a command that asks at a terminal never does
_SHOWN = 200  # characters of what a program says of its failure


class SecretError(ValueError):
    """What is wrong with a reference, and what fixes it."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem, self.fix = problem, fix


def references(text: str) -> tuple[str, ...]:
    """What `text` refers to, as it stands between the braces, in order, each once."""
    return tuple(dict.fromkeys(REFERENCE.findall(text)))


def with_plain_names(text: str) -> tuple[str, dict[str, str]]:
    """The text with a plain variable's name in the place of each file or program.

    Their blanks and slashes could be taken for parts of the text.

    Args:
        text: with references.

    Returns:
        The text, and of each name in it what it stands for.
    """
    names = {name: name if name.isidentifier() else f"_{number}" for number, name in enumerate(references(text))}
    plain = REFERENCE.sub(lambda match: f"${{{names[match[1]]}}}", text)
    return plain, {plain_name: name for name, plain_name in names.items()}


def read_secrets(text: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The values of all that `text` refers to, by what stands between the braces.

    Args:
        text: with references.
        environment: of the command; a variable with an empty value counts as missing. It may name a file or a program,
            too: these are asked only where it does not.

    Raises:
        SecretError: one has no value.
    """
    return {name: _value(name, environment) for name in references(text)}


def _value(name: str, environment: Mapping[str, str]) -> str:
    kind, _, rest = name.partition(":")
    value = environment.get(name)
    if value:
        return value
    if not rest:
        raise SecretError(f"the environment variable {name} is not set", f"export {name}=... before the command")
    return _of_file(Path(rest)) if kind == "file" else _of_command(rest)


def _of_file(file: Path) -> str:
    if not file.is_absolute():
        raise SecretError(f"the file {file} is not named by its whole path", "write ${file:/run/secrets/name}")
    try:
        with file.open("rb") as stream:
            content = stream.read(_BYTES_MAX + 1)
    except OSError as error:
        raise SecretError(
            f"the file {file} cannot be read: {error.strerror}",
            "write the secret into it, readable by the user of the command",
        ) from error
    return _text(content, f"the file {file}")


def _of_command(line: str) -> str:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise SecretError(
            f"the command has a quotation mark that is not closed: {error}", "write it as in a shell"
        ) from error
    if not words:
        raise SecretError("the command is empty", "write ${command:program argument ...}")
    name = words[0]  # an argument may be a secret
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SecretError(
            f"the command {name} did not end within {_COMMAND_TIMEOUT_S:.0f} s",
            "run it by hand as the same user: does it ask for something?",
        ) from error
    except OSError as error:
        raise SecretError(
            f"the command {name} cannot be run: {error.strerror}",
            "name an installed program, by its whole path where PATH has it not",
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:_SHOWN]
        raise SecretError(
            f"the command {name} ended with {done.returncode}{': ' if said else ''}{said}",
            "run it by hand as the same user",
        )
    return _text(done.stdout, f"the command {name}")


def _text(content: bytes, source: str) -> str:
    """The value in the bytes of a source, without the line's end behind it."""
    if len(content) > _BYTES_MAX:
        raise SecretError(f"{source} gives more than {_BYTES_MAX >> 10} KiB", "it must give the secret alone")
    try:
        value = content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise SecretError(f"{source} gives no UTF-8 text", "it must give the secret alone, as text") from error
    if not value or "\n" in value or "\0" in value:
        raise SecretError(
            f"{source} gives {'nothing' if not value else 'more than a line'}",
            "it must give the secret alone, in one line",
        )
    return value
