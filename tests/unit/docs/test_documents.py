"""The documents name only things that exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from tests.support.session.packages import PACKAGES, ROOT

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
CODE = re.compile(r"`([^`\n]+)`")
NAME = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
SHORT = re.compile(r"[a-z_]+(?:\.[a-z_]+)*\.[A-Z][a-z]\w+(?:\.\w+)*")
FOLDERS = "|".join((*PACKAGES, "tests", "docs", "examples", "benchmarks", "scripts"))
FILE = re.compile(rf"(?:{FOLDERS})/[\w./-]*")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
STATES = {"built", "in part", "not yet", "no counterpart"}
CHAPTERS = ("Capture", "Staging and propagation", "Apply", "Rules", "Tags")


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def spans(document: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    return CODE.findall(text)


def resolve(name: str) -> object:
    """The module, class, function or attribute with the name `package.module.name`."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            # Look for an attribute only when a part of the name itself is missing.
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part, None) or found.__annotations__[part]
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_name_in_a_document_exists(document):
    missing = []
    for name in {name for span in spans(document) for name in NAME.findall(span) if NAME.fullmatch(span.rstrip("()"))}:
        try:
            resolve(name)
        except (ModuleNotFoundError, KeyError, AttributeError):
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_file_in_a_document_exists(document):
    named = {span.partition("::")[0] for span in spans(document) if FILE.fullmatch(span.partition("::")[0])}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


@cache
def functions_of(file: Path) -> frozenset[str]:
    """Names of all functions in a file; empty if the file does not exist."""
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing_tests(texts: Iterable[str]) -> list[str]:
    """The `path::test` references without such a test function in that file."""
    missing = []
    for text in texts:
        file, _, name = text.partition("::")
        if name and FILE.fullmatch(file) and not (name.startswith("test_") and name in functions_of(ROOT / file)):
            missing.append(text)
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_test_in_a_document_exists(document):
    assert missing_tests(spans(document)) == []


def test_missing_tests_are_detected():
    """Test the check itself: a missing test is detected in an existing and in a missing file."""
    here = f"{ids(Path(__file__))}::"
    wrong = [f"{here}test_nothing", f"{here}missing_tests", "tests/unit/nowhere.py::test_nothing"]
    assert missing_tests([f"{here}test_every_test_in_a_document_exists", *wrong]) == wrong


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_class_in_a_document_has_its_package(document):
    """`module.Class` without its package would escape the check of names."""
    assert [span for span in spans(document) if SHORT.fullmatch(span) and not NAME.fullmatch(span)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_link_in_a_document_has_a_target(document):
    links = [link for link in LINK.findall(document.read_text()) if not link.startswith("http")]
    assert [link for link in links if not (document.parent / link).exists()] == []


ANCHOR = re.compile(r"\]\(([^)#\s]*)#([^)\s]+)\)")


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in words}


def lost_anchors(document: Path, text: str) -> list[str]:
    """Links of a document to missing headings.

    Args:
        document: its path; links are relative to it.
        text: its text.
    """
    found = [(document.parent / link if link else document, name) for link, name in ANCHOR.findall(text)]
    return [
        f"{file.name}#{name}"
        for file, name in found
        if file.suffix == ".md" and name not in anchors(text if file == document else file.read_text())
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_every_link_to_a_heading_has_a_target(document):
    assert lost_anchors(document, document.read_text()) == []


def test_missing_heading_is_detected():
    """Test the check itself."""
    text = "# A page\n\n## Who's there: [you](x.md)\n\n```\n# no heading\n```\n"
    assert anchors(text) == {"a-page", "whos-there-you"}
    links = "[a](#a-page) [b](#no-heading) [c](glossary.md#glossary) [d](glossary.md#nothing)"
    assert lost_anchors(ROOT / "docs" / "how" / "page.md", text + links) == [
        "page.md#no-heading",
        "glossary.md#nothing",
    ]


def test_missing_names_are_detected():
    """Test the check itself: a missing name is detected at every depth."""
    assert resolve("headrace.lcr.scn.Scn") is not None
    assert resolve("headrace.lcr.batch.LcrBatch.through_scn") is not None
    for name in ("headrace.nothing", "headrace.lcr.scn.Nothing", "headrace.lcr.batch.LcrBatch.nothing"):
        with pytest.raises((ModuleNotFoundError, KeyError, AttributeError)):
            resolve(name)


def manual_map() -> dict[str, list[list[str]]]:
    """The rows of each chapter: feature, place, test, state."""
    chapters: dict[str, list[list[str]]] = {}
    for line in (ROOT / "docs" / "reference" / "manual-map.md").read_text().splitlines():
        if line.startswith("## "):
            chapters[line[3:].strip()] = []
        elif line.startswith("|") and chapters:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] != "feature" and set(cells[0]) != {"-"}:
                chapters[list(chapters)[-1]].append(cells)
    return chapters


def test_manual_map_has_each_chapter_and_a_known_state_in_every_row():
    chapters = manual_map()
    assert set(CHAPTERS) <= set(chapters)
    for chapter, rows in chapters.items():
        assert rows, chapter
        assert [row for row in rows if len(row) != 4 or row[3] not in STATES] == []


def test_built_features_of_the_manual_map_name_their_place_and_test():
    for rows in manual_map().values():
        for feature, where, test, state in rows:
            if state in {"built", "in part"}:
                assert NAME.search(where), feature
                assert re.fullmatch(r"`tests/[\w/]+\.py::test_\w+`(, `tests/[\w/]+\.py::test_\w+`)*", test), feature


@pytest.mark.parametrize("state", ["in part", "no counterpart"])
def test_manual_map_explains_missing_parts_and_features(state):
    for rows in manual_map().values():
        assert [row[0] for row in rows if row[3] == state and not row[0].endswith(")")] == []


POINTS = 64
POINT = re.compile(r"^\| (\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TESTS = re.compile(r"`tests/[\w/]+\.py::test_\w+`(, `tests/[\w/]+\.py::test_\w+`)*")
HAPPENS = re.compile(r"^\| ([A-Z][a-z ]+) \| [^|]+ \|$", re.MULTILINE)


def wrong_points(text: str) -> list[str]:
    """What is wrong with the rows of a page of points: missing numbers, unexplained words, points without tests."""
    rows, words = POINT.findall(text), tuple(HAPPENS.findall(text.partition("\n## ")[0]))
    wrong = [
        f"no point {number}" for number in range(1, POINTS + 1) if [row[0] for row in rows].count(str(number)) != 1
    ]
    wrong += [f"too many points: {len(rows)}"] if len(rows) > POINTS else []
    wrong += [f"{number}: {happens}" for number, _, happens, _ in rows if not happens.startswith(words or ("?",))]
    return wrong + [f"{number}: {tests}" for number, _, _, tests in rows if not TESTS.fullmatch(tests)]


def test_each_point_of_ddl_says_what_happens_and_names_its_tests():
    """That the tests exist is checked for all documents."""
    assert wrong_points((ROOT / "docs" / "reference" / "ddl-points.md").read_text()) == []


def test_errors_of_the_points_are_detected():
    """Test the check itself."""
    good = "| Replicated | yes |\n\n## A\n\n" + "".join(
        f"| {number} | a | Replicated | `tests/a.py::test_a`, `tests/a.py::test_b` |\n"
        for number in range(1, POINTS + 1)
    )
    assert wrong_points(good) == []
    assert wrong_points(good.replace("| 7 |", "| 6 |")) == ["no point 6", "no point 7"]
    assert wrong_points(good + "| 65 | a | Replicated | `tests/a.py::test_a` |\n") == ["too many points: 65"]
    assert wrong_points(good.replace("| 7 | a | Replicated", "| 7 | a | Perhaps")) == ["7: Perhaps"]
    assert wrong_points(good.replace("`tests/a.py::test_a`, `tests/a.py::test_b` |\n| 8 |", "none |\n| 8 |")) == [
        "7: none"
    ]


def test_each_decision_has_a_number_that_begins_its_title():
    """Numbers are assigned before the decisions are written, so there can be temporary gaps."""
    files = decisions()
    assert len({file.name[:4] for file in files}) == len(files) > 20
    for file in files:
        assert file.read_text().startswith(f"# {int(file.name[:4])}. ")


def decisions() -> list[Path]:
    """The files of all decisions, by number; everything in the folder except the index."""
    folder = ROOT / "docs" / "decisions"
    return sorted(file for file in folder.glob("*.md") if file.name != "README.md")


DECISION = re.compile(r"^\| \[(\d+)\]\((\d{4}-[\w-]+\.md)\) \| (.+) \| (.+) \|$", re.MULTILINE)
OTHER = r"\[\d+\]\(\d{4}-[\w-]+\.md\)"
STATUS = re.compile(rf"in force(, amended by {OTHER}(, {OTHER})*)?|superseded by {OTHER}")


def wrong_rows(index: str, files: dict[str, str]) -> list[str]:
    """Rows of the index that contradict the decisions.

    Args:
        index: the text of the index.
        files: the text of each decision, by its file's name.
    """
    rows = DECISION.findall(index)
    listed = [name for _, name, _, _ in rows]
    wrong = [f"{name}: {listed.count(name)} times" for name in files if listed.count(name) != 1]
    for number, name, title, status in rows:
        text = files.get(name, "")
        if text.partition("\n")[0] != f"# {number}. {title}":
            wrong.append(f"{name}: has another title")
        if not STATUS.fullmatch(status):
            wrong.append(f"{name}: {status}")
        if ("superseded" in status) != ("\nSuperseded by " in text):
            wrong.append(f"{name}: says something else of being superseded")
        wrong += [
            f"{name}: neither it nor {other} names the other one"
            for other in re.findall(r"\((\d{4}-[\w-]+\.md)\)", status)
            if other not in text and name not in files.get(other, "")
        ]
    return wrong


def test_index_lists_each_decision_once_with_its_title_and_status():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()
    assert wrong_rows(index, {file.name: file.read_text() for file in decisions()}) == []
    assert index.count("\n| [") == len(decisions()), "a row in another form"


def test_errors_of_the_index_are_detected():
    """Test the check itself: a decision that is missing, duplicated, with another title, or with a wrong status."""
    files = {"0001-a.md": "# 1. A\n\nSuperseded by [2](0002-b.md).\n", "0002-b.md": "# 2. B\n"}
    a, b = "| [1](0001-a.md) | A | superseded by [2](0002-b.md) |\n", "| [2](0002-b.md) | B | in force |\n"
    assert wrong_rows(a + b, files) == []
    assert wrong_rows(a, files) == ["0002-b.md: 0 times"]
    assert wrong_rows(a + b + b, files) == ["0002-b.md: 2 times"]
    assert wrong_rows(a + b.replace("B", "C"), files) == ["0002-b.md: has another title"]
    assert wrong_rows(a + b.replace("in force", "open"), files) == ["0002-b.md: open"]
    assert wrong_rows(a.replace("superseded by [2](0002-b.md)", "in force") + b, files) == [
        "0001-a.md: says something else of being superseded"
    ]
    amended = b.replace("in force", "in force, amended by [3](0003-c.md)")
    more = {**files, "0003-c.md": "# 3. C\n"}
    assert wrong_rows(a + amended + "| [3](0003-c.md) | C | in force |\n", more) == [
        "0002-b.md: neither it nor 0003-c.md names the other one"
    ]
