"""Another user of the machine, who may open its loopback ports and read what everybody may read."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["NOBODY", "ask_for_variable", "readable_by_others", "send_to_spark"]

NOBODY = 65534
"""Number of a user that owns nothing; the attacker is this one where the tests run as root, and else their own user."""

# Reads ports and what to send to each, over connections of their own, and tells what each answered, in hexadecimal.
_SEND = """
import encodings.idna, json, os, socket, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
ports, messages = json.load(sys.stdin)
answers = []
for port in ports:
    answer = b""
    for message in messages:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=3) as link:
                link.sendall(bytes.fromhex(message))
                while piece := link.recv(4096):
                    answer += piece
        except OSError:
            pass
    answers.append(answer.hex())
print(json.dumps(answers))
"""
_SECONDS_EACH = 3


def _send(ports: Sequence[int], messages: Sequence[bytes]) -> list[bytes]:
    """What ports answer another user; one that is silent takes `_SECONDS_EACH` for each message."""
    program = [sys.executable, "-I", "-c", _SEND.replace("{nobody}", str(NOBODY))]
    done = subprocess.run(
        program, input=json.dumps([list(ports), [message.hex() for message in messages]]), capture_output=True, text=True, check=True,
        timeout=60 + _SECONDS_EACH * len(messages) * len(ports), cwd="/",
    )
    return [bytes.fromhex(answer) for answer in json.loads(done.stdout)]


def ask_for_variable(ports: Sequence[int], variable: str) -> list[str]:
    """What ports of this machine answer another user who asks a JVM for a variable of its environment, without a secret.

    py4j's `java.lang.System.getenv(...)`: at once, behind a guessed secret, and behind none.

    Args:
        ports: to ask.
        variable: name of the variable.
    """
    call = b"c\nz:java.lang.System\ngetenv\ns" + variable.encode() + b"\ne\n"
    return [answer.decode("utf-8", "replace") for answer in _send(ports, [call, b"A\nguess\ne\n" + call, b"A\n\ne\n" + call])]


def send_to_spark(ports: Sequence[int]) -> list[str]:
    """What ports of this machine answer another user who sends an object to a JVM over Spark's connections.

    The object is Java's text "hello", for the endpoint that every process of Spark with a server has. Who deserializes it says that it does not know such
    a message; a sender of a whole chain of classes would have run code by then.

    Args:
        ports: to send it to.

    Returns:
        Of each its answer; empty: none, or no answer as Spark's processes give them.
    """
    name = b"endpoint-verifier"
    body = b"\x00\x00" + struct.pack(">H", len(name)) + name + b"\xac\xed\x00\x05t\x00\x05hello"
    request = struct.pack(">BqI", _SPARK_REQUEST, _REQUEST_NUMBER, len(body)) + body
    return [_spark_answer(answer) for answer in _send(ports, [struct.pack(">q", 8 + len(request)) + request])]


_SPARK_REQUEST, _SPARK_RESPONSE, _SPARK_FAILURE = 3, 4, 5  # kinds of messages of Spark's connections
_REQUEST_NUMBER = 4711


def _spark_answer(answer: bytes) -> str:
    """The text in an answer to the request of `send_to_spark`."""
    if len(answer) < 21:
        return ""
    kind, number = struct.unpack_from(">Bq", answer, 8)
    is_answer = kind in {_SPARK_RESPONSE, _SPARK_FAILURE} and number == _REQUEST_NUMBER
    return answer[21:].decode("utf-8", "replace") if is_answer else ""


# Reads names of files, and tells which of them opens.
_READ = """
import json, os, sys
os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
found = []
for name in json.load(sys.stdin):
    try:
        os.listdir(name) if os.path.isdir(name) else open(name, "rb").close()
        found.append(name)
    except OSError:
        pass
print(json.dumps(found))
"""


def readable_by_others(paths: Sequence[Path]) -> list[Path]:
    """Which files another user can open, and which folders he can list, where the tests run as root; else those that their modes open to others.

    Args:
        paths: of a folder that is closed to nobody above it.
    """
    if os.geteuid() != 0:
        return [each for each in paths if each.lstat().st_mode & 0o077]
    program = [sys.executable, "-I", "-c", _READ.replace("{nobody}", str(NOBODY))]
    done = subprocess.run(program, input=json.dumps([str(each) for each in paths]), capture_output=True, text=True, check=True, timeout=60, cwd="/")
    return [Path(each) for each in json.loads(done.stdout)]
