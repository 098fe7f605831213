from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from actors.hosting.log_bound import bound_log

WRITER = "import sys\nfor line in sys.stdin:\n    sys.stderr.write(line)\n    print('written', flush=True)\n"


def test_log_of_a_running_process_stays_bounded_and_keeps_later_lines(tmp_path: Path):
    file = tmp_path / "driver.log"
    assert not bound_log(file, 10)
    with file.open("ab") as log:
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert writer.stdin is not None
    assert writer.stdout is not None
    for number in range(4):
        writer.stdin.write(f"line {number} of eighteen bytes\n")
        writer.stdin.flush()
        writer.stdout.readline()
        was_put_aside = bound_log(file, 40)
        assert was_put_aside == (number % 2 == 1)
    assert file.read_text() == ""
    writer.stdin.write("the last\n")
    writer.stdin.close()
    assert writer.wait() == 0
    writer.stdout.close()
    assert file.read_bytes() == b"the last\n"  # at the beginning of the file, without a hole of zeros
    assert (tmp_path / "driver.log.1").read_text() == "line 2 of eighteen bytes\nline 3 of eighteen bytes\n"
