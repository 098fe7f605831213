"""A YAML file as plain data, with the line of every value and findings for what YAML would hide.

YAML lets a later duplicate key win silently, turns `00` into a number and `no` into False, and can expand a small file
into a huge one. A topology file gets no such leniency: duplicates are problems, lines are kept for messages, and size
is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import yaml

from headrace.databases.ports import Finding

__all__ = ["Document", "Path_", "path_text", "read_document"]

Path_ = tuple[str | int, ...]
"""The place of a value: keys and list indexes from the top."""

Plain = str | int | float | bool | None | list["Plain"] | dict[str, "Plain"]

_BYTES_MAX = 4 << 20  # thousands of tables fit; nobody writes more by hand
_VALUES_MAX = 200_000  # bounds the expansion: aliases can multiply a small file
_DEPTH_MAX = 20  # a topology is six levels deep


@dataclass(slots=True)
class Document:
    """A YAML file's content.

    Args:
        content: the top-level mapping; empty when the file is not a mapping (then there are findings).
        lines: path -> 1-based line of the value (of its key, in a mapping).
        findings: problems of the file as YAML.
        unresolved: those of them that are secrets without a value: who does not connect can do without.
    """

    content: dict[str, Plain] = field(default_factory=dict)
    lines: dict[Path_, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unresolved: list[Finding] = field(default_factory=list)

    def locate(self, path: Path_) -> str:
        """Return `captures.c1.queue (line 12)`; a value without a line has that of the nearest enclosing one."""
        for length in range(len(path), 0, -1):
            if line := self.lines.get(path[:length]):
                return f"{path_text(path)} (line {line})"
        return path_text(path)


def path_text(path: Path_) -> str:
    """Format a path for people: `replicate[0].tables`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "file"


def read_document(file: Path) -> Document:
    """Read a YAML file; problems are findings of the result, never raised."""
    document = Document()
    try:
        text = file.read_bytes()
    except OSError as error:
        problem = error.strerror or "cannot be read"
        document.findings.append(Finding(path="file", problem=problem.lower(), fix=f"check the path {file}"))
        return document
    if len(text) > _BYTES_MAX:
        document.findings.append(
            Finding(path="file", problem=f"has {len(text)} bytes", fix=f"at most {_BYTES_MAX} are read")
        )
        return document
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        _Conversion(document).convert_root(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        document.findings.append(
            Finding(
                path=f"file (line {line})",
                problem=f"is not YAML: {error.problem}",
                fix="fix the line, or the one before",
            )
        )
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        document.findings.append(Finding(path="file", problem=f"is not YAML: {reason}", fix="save it as UTF-8 text"))
    return document


class _Conversion:
    """Converts YAML nodes to plain data."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._constructor = yaml.constructor.SafeConstructor()
        self._values = 0

    def convert_root(self, root: yaml.Node | None) -> None:
        if not isinstance(root, yaml.MappingNode):
            what = "is empty" if root is None else "is not a mapping of keys to values"
            self._report((), what, "begin with `topology: NAME` and `sites:`")
            return
        content = self._mapping(root, ())
        self._document.content = content

    def _convert(self, node: yaml.Node, path: Path_) -> Plain:
        self._values += 1
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if self._values > _VALUES_MAX or len(path) > _DEPTH_MAX:
            raise yaml.YAMLError(f"it expands to more than {_VALUES_MAX} values or {_DEPTH_MAX} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._convert(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Plain]:
        self._report_repeated_keys(node, path)
        # Merge keys (`<<: *anchor`): their values come first, so that the mapping's own keys win.
        self._constructor.flatten_mapping(node)
        answer: dict[str, Plain] = {}
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                inner = (*path, str(key_node.value))
                self._document.lines[inner] = key_node.start_mark.line + 1
                answer[str(key_node.value)] = self._convert(value_node, inner)
            else:
                self._report(path, "has a key that is not a word", "use plain words as keys")
        return answer

    def _report_repeated_keys(self, node: yaml.MappingNode, path: Path_) -> None:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in lines:
                problem = f"is written twice, in lines {lines[key]} and {line}"
                self._document.findings.append(
                    Finding(path=path_text((*path, key)), problem=problem, fix="keep one of them")
                )
            lines.setdefault(key, line)

    def _scalar(self, node: yaml.Node, path: Path_) -> Plain:
        try:
            value = self._constructor.construct_object(node)
        except (yaml.YAMLError, ValueError):
            self._report(
                path, f"has the value {node.value!r}, which cannot be read", "write it as a plain word or quote it"
            )
            return None
        if value is None or isinstance(value, (str, int, float, bool)):
            return value
        # Dates and the like: no value of a topology is one, so the text is meant.
        return str(node.value)

    def _report(self, path: Path_, problem: str, fix: str) -> None:
        self._document.findings.append(Finding(path=self._document.locate(path), problem=problem, fix=fix))
