"""Another user of the machine, who can open its loopback ports and read world-readable files."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

__all__ = [
    "NOBODY",
    "Address",
    "Call",
    "ask_for_variable",
    "assert_spark_reads_nothing",
    "listening_of",
    "open_folder",
    "readable_by_others",
    "silent_connections",
    "speak_to",
]

NOBODY = 65534
"""Number of a user that owns nothing; the attacker is this user if the tests run as root, otherwise their own user."""

# Reads addresses and messages, sends each message over a new connection, and prints the answers in hexadecimal.
_SEND = """
import concurrent.futures.thread, encodings.idna, json, os, socket, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
addresses, messages = json.load(sys.stdin)

def send(address):
    answer = b""
    for message in messages:
        try:
            with socket.create_connection(tuple(address), timeout=3) as link:
                link.sendall(bytes.fromhex(message))
                while piece := link.recv(4096):
                    answer += piece
        except OSError:
            pass
    return answer.hex()

with concurrent.futures.ThreadPoolExecutor(8) as pool:  # a silent port is waited for
    print(json.dumps(list(pool.map(send, addresses))))
"""
_SECONDS_EACH = 3


Address = tuple[str, int]
"""Host and port of this machine."""


def _send(addresses: Sequence[Address], messages: Sequence[bytes]) -> list[bytes]:
    """Return the ports' answers to another user; a silent port takes `_SECONDS_EACH` for each message."""
    program = [sys.executable, "-I", "-c", _SEND.replace("{nobody}", str(NOBODY))]
    done = subprocess.run(
        program,
        input=json.dumps([list(addresses), [message.hex() for message in messages]]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60 + _SECONDS_EACH * len(messages) * len(addresses),
        cwd="/",
    )
    return [bytes.fromhex(answer) for answer in json.loads(done.stdout)]


# Reads ports and calls, and makes each call at each port as a component would, but without a certificate. It skips
# silent ports.
_SPEAK = """
import concurrent.futures.thread, encodings.idna, json, os, socket, ssl, sys, threading
import grpc
from protos import queue_pb2 as q, queue_pb2_grpc, redo_pb2 as r, redo_pb2_grpc
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
ports, calls = json.load(sys.stdin)
over, SCN_MAX = threading.Event(), 2**63 - 1

def stream(*messages):
    yield from messages
    over.wait()

def begin(channel, method, hello, source):
    queue, redo, transport = queue_pb2_grpc.QueueStub(channel), redo_pb2_grpc.RedoStub(channel), redo_pb2_grpc.RedoTransportStub(channel)
    if method == "Checkpoint":
        return redo.Checkpoint(r.RequiredCheckpoint(hello=hello, scn=SCN_MAX), timeout=5) is not None
    if method == "Watch":
        return next(redo.Watch(hello, timeout=5)) is not None
    if method == "Enqueue":
        return next(queue.Enqueue(stream(q.EnqueueRequest(hello=hello), q.EnqueueRequest(source=source)), timeout=5)) is not None
    elif method == "Dequeue":
        needed = [q.SourcePosition(source=source, scn=0)]
        call = queue.Dequeue(stream(q.DequeueRequest(hello=hello), q.DequeueRequest(subscribe=q.Subscribe(needed=needed, credit_bytes=1 << 20))), timeout=5)
    else:
        call = transport.Ship(stream(r.ShipRequest(begin=r.BeginShipping(hello=hello, place=r.RedoPosition(), credit_bytes=1 << 20))), timeout=5)
    return any(key == "headrace-accepted" for key, _ in call.initial_metadata())

def over_tls(port):  # whether the port speaks TLS, and whether HTTP/2 is answered behind it
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link, context.wrap_socket(link) as secure:
            try:
                secure.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
                return True, bool(secure.recv(9))
            except OSError:
                return True, False
    except OSError:
        return False, False

def speak(port):
    speaks, answers = over_tls(port)
    served = [[port, "TLS without a certificate", ""]] * answers
    for method, topology, component, queue, source in calls:
        hello = q.Hello(protocol_version=1, topology=topology, component=component, queue=queue, incarnation="~forged")
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                served += [[port, method, component]] * begin(channel, method, hello, source)
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    break
    return [port] * speaks, served

with concurrent.futures.ThreadPoolExecutor(8) as pool:  # a silent port is waited for
    found = list(pool.map(speak, ports))
over.set()
print(json.dumps([sum(each, []) for each in zip(*found)]))
"""

Call = tuple[str, str, str, str, str]
"""Method ("Checkpoint", "Watch", "Enqueue", "Dequeue", "Ship"), topology, component, queue (of redo: its source),
source.
"""


def speak_to(ports: Sequence[int], calls: Sequence[Call]) -> tuple[set[int], set[tuple[int, str, str]]]:
    """Let another user speak the components' protocol to ports of this machine, without a certificate.

    Args:
        ports: to call.
        calls: made at each of them.

    Returns:
        The ports that speak TLS; and port, method and component of each call that was served.
    """
    program = [sys.executable, "-I", "-c", _SPEAK.replace("{nobody}", str(NOBODY))]
    done = subprocess.run(
        program,
        input=json.dumps([list(ports), list(calls)]),
        capture_output=True,
        text=True,
        check=False,
        timeout=120 + 15 * len(ports),
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    secured, served = json.loads(done.stdout.splitlines()[-1])
    return set(secured), {(port, method, component) for port, method, component in served}


def ask_for_variable(addresses: Sequence[Address], variable: str) -> list[str]:
    """Let another user ask JVMs for a variable of their environment, without a secret.

    py4j's `java.lang.System.getenv(...)`: without authentication, after a guessed secret, and after an empty one.

    Args:
        addresses: of the JVMs.
        variable: name of the variable.

    Returns:
        Their answers.
    """
    call = b"c\nz:java.lang.System\ngetenv\ns" + variable.encode() + b"\ne\n"
    return [
        answer.decode("utf-8", "replace")
        for answer in _send(addresses, [call, b"A\nguess\ne\n" + call, b"A\n\ne\n" + call])
    ]


def _send_to_spark(addresses: Sequence[Address]) -> list[str]:
    """Let another user send an object to JVMs over Spark's connections.

    The object is Java's text "hello", for the endpoint of every Spark process with a server. A process that
    deserializes it answers that it does not know such a message; a chain of classes would have run code by then.

    Args:
        addresses: of the JVMs.

    Returns:
        The answer of each; empty: none, or not an answer of Spark's processes.
    """
    name = b"endpoint-verifier"
    body = b"\x00\x00" + struct.pack(">H", len(name)) + name + b"\xac\xed\x00\x05t\x00\x05hello"
    request = struct.pack(">BqI", _SPARK_REQUEST, _REQUEST_NUMBER, len(body)) + body
    return [_spark_answer(answer) for answer in _send(addresses, [struct.pack(">q", 8 + len(request)) + request])]


_SPARK_REQUEST, _SPARK_RESPONSE, _SPARK_FAILURE = 3, 4, 5  # kinds of messages of Spark's connections
_REQUEST_NUMBER = 4711


def _spark_answer(answer: bytes) -> str:
    """Return the text in an answer to the request of `_send_to_spark`."""
    if len(answer) < 21:
        return ""
    kind, number = struct.unpack_from(">Bq", answer, 8)
    is_answer = kind in {_SPARK_RESPONSE, _SPARK_FAILURE} and number == _REQUEST_NUMBER
    return answer[21:].decode("utf-8", "replace") if is_answer else ""


def listening_of(processes: Iterable[psutil.Process]) -> Iterator[tuple[str, Address]]:
    """Yield name and address of processes for each socket that they listen on.

    Args:
        processes: some may have ended.
    """
    for process in processes:
        with suppress(psutil.Error):
            for each in process.net_connections("tcp"):
                if each.status == psutil.CONN_LISTEN:
                    yield process.name(), (each.laddr.ip, each.laddr.port)


def assert_spark_reads_nothing(found: Sequence[tuple[str, Address]], executors: int) -> None:
    """Assert that Spark's ports refuse another user's message before they deserialize it.

    Args:
        found: all ports of an application, from `listening_of`.
        executors: number of the application's executors.
    """
    answers = _send_to_spark([address for _, address in found])
    answered = {each: answer for each, answer in zip(found, answers, strict=True) if answer}
    assert len(answered) >= 3 + executors, "the application master's, the driver's two, and one of each executor"
    assert not [each for each, answer in answered.items() if "Unknown challenge message" not in answer]


# Reads addresses, opens a connection to each, and prints the open ones; holds them until its standard input closes.
_HOLD = """
import encodings.idna, json, os, socket, sys
if os.getuid() == 0:
    os.setgroups([]); os.setgid({nobody}); os.setuid({nobody})
held = []
for address in json.loads(sys.stdin.readline()):
    try:
        held.append((address, socket.create_connection(tuple(address), timeout=3)))
    except OSError:
        pass
print(json.dumps([address for address, _ in held]), flush=True)
sys.stdin.read()
"""


@contextmanager
def silent_connections(addresses: Sequence[Address]) -> Iterator[list[Address]]:
    """Hold another user's connection to each address without sending anything.

    Args:
        addresses: of this machine; a repeated address gets a second connection.

    Yields:
        The addresses at which a connection was opened.
    """
    program = [sys.executable, "-I", "-c", _HOLD.replace("{nobody}", str(NOBODY))]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/") as attacker:
        assert attacker.stdin is not None
        assert attacker.stdout is not None
        attacker.stdin.write(json.dumps(list(addresses)) + "\n")
        attacker.stdin.flush()
        try:
            yield [(host, port) for host, port in json.loads(attacker.stdout.readline())]
        finally:
            attacker.stdin.close()


@contextmanager
def open_folder() -> Iterator[Path]:
    """Yield a folder below /tmp that every user can enter; pytest's own is closed."""
    folder = Path(tempfile.mkdtemp(prefix="hn-closed-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


# Reads names of files, and prints those that open.
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
    """Return the files that another user can open, and the folders that he can list.

    If the tests do not run as root, the files' modes decide.

    Args:
        paths: in a folder whose parents are open to everyone.
    """
    if os.geteuid() != 0:
        return [each for each in paths if each.lstat().st_mode & 0o077]
    program = [sys.executable, "-I", "-c", _READ.replace("{nobody}", str(NOBODY))]
    done = subprocess.run(
        program,
        input=json.dumps([str(each) for each in paths]),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd="/",
    )
    return [Path(each) for each in json.loads(done.stdout)]
