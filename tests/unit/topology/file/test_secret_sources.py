"""Secrets in a topology file that come from a file or a program."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from topology.file.connection_strings import ConnectionStringError, resolve
from topology.file.reading import examine
from topology.file.secret_sources import SecretError, read_secrets, references

FILE = """
topology: t
sites:
  a: {{database: {{kind: postgres, dsn: "{dsn}"}}}}
  b: {{database: {{kind: embedded}}}}
replicate:
  - {{tables: [public.t], from: a, to: [b]}}
alerts:
  to: [{{webhook: "https://example.com/x", token: "{token}"}}]
"""


def script(folder: Path, text: str) -> str:
    """Return the command line of a program with this text."""
    file = folder / "say it.py"
    file.write_text(text)
    return f"{sys.executable} '{file}'"


def test_secret_file_contains_the_whole_string_or_a_part(tmp_path: Path):
    whole, part = tmp_path / "dsn", tmp_path / "pass word"
    whole.write_text("host=h dbname=d\n")
    part.write_text("it's @:/ \\secret\n")
    assert resolve(f"${{file:{whole}}}", {}) == "host=h dbname=d"
    assert resolve(f"postgresql://me:${{file:{part}}}@h/d", {}) == "postgresql://me:it%27s%20%40%3A%2F%20%5Csecret@h/d"
    assert (
        resolve(f"host=h password=${{file:{part}}} dbname=d", {}) == "host=h password='it\\'s @:/ \\\\secret' dbname=d"
    )


def test_secret_program_runs_without_a_shell(tmp_path: Path):
    command = script(tmp_path, "import sys; print(sys.argv[1:])")
    reference = f"${{command:{command} 'a b' $HOME;id}}"
    assert resolve(f"host=h password='{reference}'", {}) == "host=h password='[\\'a b\\', \\'$HOME;id\\']'"


def test_topology_accepts_secrets_from_files_and_programs(tmp_path: Path):
    (tmp_path / "dsn").write_text("host=h dbname=d user=u")
    file = tmp_path / "t.yaml"
    file.write_text(
        FILE.format(dsn=f"${{file:{tmp_path / 'dsn'}}}", token="${command:" + script(tmp_path, "print('abc')") + "}")
    )
    spec = examine(file, {}).spec
    assert spec is not None
    assert spec.site("a").database.dsn == "host=h dbname=d user=u"
    assert spec.alerts is not None
    assert spec.alerts.to[0].token == "abc"


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("import sys; print('no such key', file=sys.stderr); sys.exit(3)", "ended with 3: no such key"),
        ("pass", "gives nothing"),
        ("print('a'); print('b')", "gives more than a line"),
        ("print('a' * 70_000)", "gives more than 64 KiB"),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "gives no UTF-8 text"),
    ],
)
def test_failing_secret_program_is_reported_without_its_arguments(tmp_path: Path, program: str, problem: str):
    with pytest.raises(ConnectionStringError) as caught:
        resolve(f"${{command:{script(tmp_path, program)} hidden}}", {})
    assert problem in caught.value.problem
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("${file:/does/not/exist}", "cannot be read"),
        ("${file:dsn}", "is not named by its full path"),
        ("${command:no-such-program-here x}", "cannot be run"),
        ("${command:a 'b}", "quotation mark that is not closed"),
        ("${command: }", "the command is empty"),
        ("${file:/}", "cannot be read"),
    ],
)
def test_unusable_secret_source_is_named(reference: str, problem: str):
    with pytest.raises(SecretError) as caught:
        read_secrets(reference, {})
    assert problem in caught.value.problem
    assert caught.value.fix


def test_references_are_named_as_written():
    assert references("${A} ${file:/x y} ${command:p 'a b'} ${file:} ${1}") == ("A", "file:/x y", "command:p 'a b'")


def test_simulation_reads_neither_files_nor_programs(tmp_path: Path):
    class AnyValue(dict[str, str]):
        def get(self, key: str, _default: object = None) -> str:
            return f"host={len(key)}"

    touched = tmp_path / "touched"
    assert resolve(f"${{command:touch {touched}}}", AnyValue()).startswith("host=")
    assert not touched.exists()
