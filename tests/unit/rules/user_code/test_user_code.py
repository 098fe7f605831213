"""Users' functions: the files that they consist of, loading, and reports of unloadable functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.base.errors import ConfigError
from headrace.rules.user_code.loading import load, place_of
from headrace.rules.user_code.source import NO_CODE, CodeFile, UserCode, UserFunction, read_folder

MASKS = "from shared import words\n\ndef mask(lcr):\n    return words.upper(lcr)\n"
WORDS = "def upper(text):\n    return text.upper()\n"


def code_of(**texts: str) -> UserCode:
    files = tuple(
        CodeFile(path=f"{name.replace('__in', '/__in').replace('_S_', '/')}.py", text=text)
        for name, text in texts.items()
    )
    return UserCode(folder="handlers", files=files)


def function_of(code: UserCode, name: str) -> UserFunction:
    return UserFunction(name=name, version=code.version_of(name))


def loaded(code: UserCode, name: str, parameters: tuple[str, ...] = ("lcr",)) -> object:
    return load(function_of(code, name), code, parameters)


def test_function_is_loaded_with_its_modules_imports_from_the_folder() -> None:
    code = code_of(masks=MASKS, shared_S_words=WORDS)
    function = loaded(code, "masks:mask")
    assert callable(function)
    assert function("x") == "X"


def test_relative_imports_and_dataclasses_work() -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom typing import ClassVar\nfrom"
        " .words import upper\n"
        "@dataclass\nclass Row:\n    kind: ClassVar[str] = 'k'\n    text: str = ''\ndef mask(lcr):\n    return"
        " Row(upper(lcr)).text\n"
    )
    function = loaded(code_of(shared_S_masks=text, shared_S_words=WORDS), "shared.masks:mask")
    assert callable(function)
    assert function("x") == "X"


def test_two_versions_of_a_module_can_be_in_one_process() -> None:
    first, second = (code_of(masks=f"def mask(lcr):\n    return {number}\n") for number in (1, 2))
    functions = [loaded(each, "masks:mask") for each in (first, second, first)]
    assert [each(None) for each in functions if callable(each)] == [1, 2, 1]


def test_version_covers_only_the_code_that_the_function_needs() -> None:
    code = code_of(masks=MASKS, other="x = 1\n", shared_S_words=WORDS)
    changed_beside = code_of(masks=MASKS, other="x = 2\n", shared_S_words=WORDS)
    changed_below = code_of(masks=MASKS, other="x = 1\n", shared_S_words=WORDS + "\n")
    assert code.version_of("masks:mask") == changed_beside.version_of("masks:mask")
    assert code.version_of("masks:mask") != changed_below.version_of("masks:mask")
    assert {file.path for file in code.needed_by(["masks:mask"]).files} == {"masks.py", "shared/words.py"}


def test_version_covers_imports_inside_functions() -> None:
    code = code_of(masks="def mask(lcr):\n    import words\n    return words.upper(lcr)\n", words=WORDS)
    assert len(code.needed_by(["masks:mask"]).files) == 2
    function = loaded(code, "masks:mask")
    assert callable(function)
    assert function("x") == "X"


def test_module_in_a_package_needs_its_parent_packages() -> None:
    code = code_of(shop__init__="", shop_S_orders="def mask(lcr): ...\n", shop_S_other="")
    assert {file.path for file in code.needed_by(["shop.orders:mask"]).files} == {"shop/__init__.py", "shop/orders.py"}


def test_function_outside_the_folder_is_loaded_from_the_python_path() -> None:
    function = UserFunction(name="posixpath:basename", version=NO_CODE.version_of("posixpath:basename"))
    found = load(function, NO_CODE, ("lcr",))
    assert found("a/b") == "b"


def test_wrong_version_on_the_python_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="has the version"):
        load(UserFunction(name="posixpath:basename", version="000000000000"), NO_CODE, ("lcr",))


@pytest.mark.parametrize("module", ["installed_masks", "installed_shop.masks", "installed_namespace.shop.masks"])
def test_reinstalled_python_path_module_runs_in_a_running_process(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path.joinpath(*module.split(".")[:-1])
    folder.mkdir(parents=True, exist_ok=True)
    beside = "words_of_installed_masks" if folder == tmp_path else ".words"
    if folder != tmp_path:
        (folder / "__init__.py").write_text("")
    functions = []
    for text in ("first", "the second"):
        (folder / f"{beside.lstrip('.')}.py").write_text(f"WORD = {text!r}\n")
        (folder / "masks.py" if folder != tmp_path else folder / "installed_masks.py").write_text(
            f"from {beside} import WORD\ndef mask(lcr):\n    return {text!r}, WORD\n"
        )
        functions += [loaded(NO_CODE, f"{module}:mask"), loaded(NO_CODE, f"{module}:mask")]
    first, again, second, last = (each for each in functions if callable(each))
    # A sibling of a module outside a package is not known to belong to it.
    assert second(None) == last(None) == ("the second", "first" if folder == tmp_path else "the second")
    assert first(None) == again(None) == ("first", "first")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("def mask(lcr): ...\n", "masks", "does not name a function"),
        ("def mask(lcr): ...\n", "mask:mask", "there is no module mask in handlers"),
        ("def mask(lcr): ...\n", "masks:other", "handlers/masks.py has no function other"),
        ("mask = 1\n", "masks:mask", "is no function"),
        ("\nasync def mask(lcr): ...\n", "masks:mask", "handlers/masks.py, line 2: mask is an async function"),
        ("def mask(): ...\n", "masks:mask", "handlers/masks.py, line 1: mask cannot be called with"),
        ("def mask(a, b): ...\n", "masks:mask", "missing a required argument: 'b'"),
        ("\nimport nowhere_at_all\n", "masks:mask", "failed at handlers/masks.py, line 2.*nowhere_at_all"),
        ("x = 1\n1 / 0\n", "masks:mask", "failed at handlers/masks.py, line 2, in <module>: ZeroDivisionError"),
        ("import sys\nsys.exit(3)\n", "masks:mask", "failed at handlers/masks.py, line 2, in <module>: SystemExit: 3"),
    ],
)
def test_unloadable_function_is_reported_with_its_location(text: str, name: str, message: str) -> None:
    code = code_of(masks=text)
    with pytest.raises(ConfigError, match=message):
        load(UserFunction(name=name, version=""), code, ("lcr",))


def test_unparsable_file_is_reported_with_its_line() -> None:
    code = code_of(masks="x = 1\ndef mask(:\n")
    with pytest.raises(ConfigError, match=r"handlers/masks\.py, line 2"):
        code.version_of("masks:mask")


def test_error_location_is_the_line_of_the_users_code() -> None:
    code = code_of(masks="import json\n\ndef mask(lcr):\n    return json.loads(lcr)\n")
    function = loaded(code, "masks:mask")
    assert callable(function)
    with pytest.raises(ValueError, match="Expecting value") as caught:
        function("nothing")
    assert place_of(caught.value, code) == "handlers/masks.py, line 4, in mask"


def test_folder_is_read_with_its_packages(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "words.py").write_text(WORDS)
    (tmp_path / "masks.py").write_text(MASKS)
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.py").write_text("")
    code = read_folder(tmp_path, "./handlers")
    assert [file.module for file in code.files] == ["masks", "shared.words"]
    with pytest.raises(ConfigError, match="there is no folder"):
        read_folder(tmp_path / "none", "none")


def test_code_over_the_size_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match="1,000,000 at most"):
        code_of(masks="x = '" + "x" * 1_000_000 + "'\n").needed_by(["masks:mask"])


def test_function_without_a_version_is_shown_without_empty_parentheses() -> None:
    assert str(UserFunction(name="f:up", version="")) == "f:up"
    assert str(UserFunction(name="f:up", version="12ab")) == "f:up (12ab)"
