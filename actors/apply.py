"""Apply: supervises the Spark driver of one apply process.

Job
    Keep exactly one live driver of the apply process running, and answer for it.

Main path
    ApplyHost.open -> end the driver of an earlier life -> `python -m spark_apply.application.job` -> its first line of output
    names its gRPC endpoint -> ApplyHost.step asks for its status.

States
    STARTING SPARK  the driver was started and has not told its endpoint. Memory only.
    the driver's    INITIALIZING, INSTANTIATING, APPLYING, PAUSED: ..., ABORTING; see `spark_apply`. Memory only.

Durable when
    Nothing is kept here: progress is in the destination. `driver.json` names the driver's process, so that the next
    life of this actor can see it gone before it starts another.

Worked flow
    this actor is killed -> the kernel closes the driver's standard input -> the driver ends -> Ray restarts the actor
    -> it waits for the old process, ends it if it must -> new driver, higher epoch: whatever a lingering Spark task
    still sends is refused by the destination
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import queue
import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Any, ClassVar

import psutil  # type: ignore[import-untyped]

from actors.host import Host
from actors.site_connection import access_to, site_folder
from databases.connectors import DatabaseAccess, open_destination
from spark_apply.application.spark import remove_left_scratch
from streams.errors import ApplyError, DatabaseUnavailable, PropagationError, Retry, StreamsError
from streams.table_name import TableName
from topology.ways import arriving, ways_to, writes_alone

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from databases.ports import CapturedTable, DestinationDatabase
    from protos.apply_link import ApplyControlClient
    from topology.spec import ApplySpec, TopologySpec

__all__ = ["ApplyHost", "DriverEnded", "DriverRefused", "build"]

START_TIMEOUT_S = 180.0  # Spark needs 12 s on an idle machine; a loaded small one has been seen to need a minute
STATUS_INTERVAL_S = 0.5  # the status people see is at most this old
STATUS_TIMEOUT_S = 5.0
# A driver whose control endpoint is silent for this long is hung, not slow: every answer is ready in memory.
SILENCE_MAX_S = 60.0
STOP_TIMEOUT_S = 20.0  # servers finish the group they are in
END_TIMEOUT_S = 10.0  # for a driver whose standard input is closed
_LAST_WORDS_TIMEOUT_S = 1.0  # a line that was written before the end is read within milliseconds


class DriverEnded(ApplyError):  # noqa: N818 - says what happened
    """The Spark driver ended by itself or was killed; it is started again."""

    code = "HDR-5020"
    retry = Retry.TIMED


class DriverRefused(ApplyError):  # noqa: N818 - says what happened
    """The Spark driver ended with an error that somebody must act on; its words are the message."""

    code = "HDR-5021"


class ApplyHost(Host):
    """One apply process's supervisor; see the module."""

    kind: ClassVar[str] = "apply"

    def __init__(self, spec: TopologySpec, name: str, fingerprint: str, *, keep_existing: Collection[str] = ()) -> None:
        super().__init__(f"apply:{name}", spec.state_dir)
        self._spec = spec
        self._apply: ApplySpec = spec.apply(name)
        self._fingerprint = fingerprint
        self._keep_existing = frozenset(keep_existing)  # identities of tables
        self._folder = site_folder(spec, self._apply.site) / "applies" / name
        self._driver: subprocess.Popen[str] | None = None
        self._client: ApplyControlClient | None = None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._latest: dict[str, Any] = {}
        self._answered_at = 0.0
        self._answered_us = 0
        self._drivers_started = 0

    # ------------------------------------------------------------------ hosting

    def open(self) -> None:
        """End what an earlier life left, then start a driver and wait for its endpoint."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._end_predecessor()
        remove_left_scratch(self._folder)
        configuration = self._configuration()
        self._latest = {"state": "STARTING SPARK"}
        driver = subprocess.Popen(
            [sys.executable, "-m", "spark_apply.application.job"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._log(), text=True, cwd="/",
        )
        self._driver = driver
        self._drivers_started += 1
        self._remember(driver.pid)
        assert driver.stdin is not None
        try:
            driver.stdin.write(configuration + "\n")
            driver.stdin.flush()
        except OSError as error:
            raise DriverEnded(f"{self.name}: the Spark driver did not take its configuration") from error
        # A queue of its own per driver: a late line of an older one must not be taken for this one's.
        self._answers = queue.SimpleQueue()
        threading.Thread(
            target=_read_lines, args=(driver.stdout, self._answers), name=f"{self.name}-output", daemon=True
        ).start()
        self._client = self._connect(self._first_answer(driver))
        self._answered_at = self._clock.monotonic()

    def step(self) -> float:
        """Ask the driver how it is; an ended or a hung one is an error that time heals."""
        driver, client = self._driver, self._client
        assert driver is not None
        assert client is not None
        if driver.poll() is not None:
            raise self._ended(driver)
        try:
            self._latest = _status_dict(client.status(STATUS_TIMEOUT_S))
            self._answered_at, self._answered_us = self._clock.monotonic(), self._clock.time_us()
        except StreamsError as error:
            if driver.poll() is not None:
                raise self._ended(driver) from error
            if self._clock.monotonic() - self._answered_at > SILENCE_MAX_S:
                raise DriverEnded(f"{self.name}: the Spark driver did not answer for {SILENCE_MAX_S:g} s") from error
        return STATUS_INTERVAL_S

    def close(self) -> None:
        """End the driver, in order when it still answers; returns when its process is gone."""
        client, self._client = self._client, None
        driver, self._driver = self._driver, None
        self._latest = {}
        if client is not None:
            if driver is not None and driver.poll() is None:
                with contextlib.suppress(StreamsError):
                    client.stop(STOP_TIMEOUT_S)
            client.close()
        if driver is not None:
            _end_driver(driver)
            remove_left_scratch(self._folder)

    def detail_state(self) -> str:
        """The driver's own state."""
        return str(self._latest.get("state", "STARTING SPARK"))

    def status(self) -> dict[str, Any]:
        """As every host's; while the driver is being started it says so."""
        status = super().status()
        if status["state"] == "INITIALIZING":
            status["state"] = self.detail_state()
        return status

    def details(self) -> dict[str, Any]:
        """What the driver told last."""
        details = {key: value for key, value in self._latest.items() if key != "state"}
        driver = self._driver
        return {
            "site": self._apply.site, "source": self._apply.source, "fingerprint": self._fingerprint,
            "driver_pid": driver.pid if driver is not None and driver.poll() is None else 0,
            "drivers_started": self._drivers_started, "answered_us": self._answered_us, **details,
        }

    def endpoint(self) -> str:
        """The driver's control endpoint."""
        endpoint = self._latest.get("endpoint")
        if not endpoint:
            raise PropagationError(f"{self.name}: the Spark driver is not up yet")
        return str(endpoint)

    # ------------------------------------------------------------------ what the command line asks

    def low_watermark(self) -> int:
        """Everything of the tables that are applied is applied up to this SCN, or in the error queue; asked of the driver now."""
        return int(self._live().status(STATUS_TIMEOUT_S).low_watermark_scn)

    def caught_up_scn(self) -> int:
        """As `low_watermark`, of every table: less while one is copied; 0: one is not copied, or the driver is starting."""
        return int(self._live().status(STATUS_TIMEOUT_S).caught_up_scn)

    def compare(self, tables: Sequence[tuple[str, str]], rechecks: int, recheck_delay_s: float) -> list[dict[str, Any]]:
        """Compare source and destination tables; all of this apply process's when none is named."""
        from protos import apply_pb2 as pb

        request = pb.CompareRequest(
            tables=[pb.TableName(owner=owner, name=name) for owner, name in tables],
            rechecks=rechecks, recheck_delay_s=recheck_delay_s,
        )
        return [_plain(answer) for answer in self._live().compare(request)]

    def copy_again(self, tables: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
        """Begin to empty tables at the destination and copy them again; how they were before."""
        from protos import apply_pb2 as pb

        names = [pb.TableName(owner=owner, name=name) for owner, name in tables]
        return [_plain(each) for each in self._live().copy_again(pb.CopyAgainRequest(tables=names)).tables]

    def execute_errors(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Execute error transactions again, all when none is named."""
        from protos import apply_pb2 as pb

        request = pb.ErrorsRequest(numbers=list(numbers), all=not numbers)
        return [_plain(answer) for answer in self._live().execute_errors(request)]

    def delete_errors(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Delete error transactions, all when none is named."""
        from protos import apply_pb2 as pb

        request = pb.ErrorsRequest(numbers=list(numbers), all=not numbers)
        return [_plain(answer) for answer in self._live().delete_errors(request)]

    # ------------------------------------------------------------------ inside

    def _live(self) -> ApplyControlClient:
        client = self._client
        if client is None:
            raise PropagationError(f"{self.name}: the Spark driver is not up", hint="wait for it; see `headrace status`")
        return client

    def _configuration(self) -> str:
        from actors.runtime import actors_of, own_address, own_host
        from spark_apply.application.job_config import ApplyJobConfig, ExecutorResources, TableToInstantiate

        actors, apply = actors_of(self._spec.name), self._apply

        def access(site: str) -> DatabaseAccess:
            return access_to(self._spec.site(site), str(actors.call(f"site:{site}", "database_dsn")))

        ways = ways_to(self._spec, apply)
        captured: tuple[CapturedTable, ...] = actors.call(f"site:{apply.source}", "captured", timeout_s=60.0)
        tables = tuple(
            TableToInstantiate(
                identity=table.source.identity, source=TableName.of(table.source),
                destination=TableName.of(table.destination), keep_existing=table.source.identity in self._keep_existing,
                may_empty=writes_alone(self._spec, apply, TableName.of(table.destination)),
            )
            for table in arriving(ways, captured)
        )
        return ApplyJobConfig(
            topology=self._spec.name, apply=apply.name, source=access(apply.source), destination=access(apply.site),
            queue=f"queue:{apply.queue}", queue_name=apply.queue, ray_address=own_address(),
            ray_namespace=actors.namespace, state_dir=str(self._folder), tables=tables, tag=apply.tag,
            parallelism=apply.parallelism, group_transactions=apply.group_transactions, group_rows=apply.group_rows,
            host=own_host(), resources=ExecutorResources(node=self._spec.site(apply.site).node), rules=apply.rules,
            # What an apply process at the source did with changes of this site comes home when it is captured there.
            returned_from=tuple(
                other.name for other in self._spec.applies if (other.site, other.source) == (apply.source, apply.site)
            ),
        ).to_json()

    def _log(self) -> IO[bytes]:
        logs = self._spec.state_dir / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self._log_file = logs / f"apply.{self._apply.name}.driver.log"
        return self._log_file.open("ab")

    def _first_answer(self, driver: subprocess.Popen[str]) -> dict[str, Any]:
        deadline = self._clock.monotonic() + START_TIMEOUT_S
        last_words: dict[str, Any] = {}
        while self._wanted and not self._ending and self._clock.monotonic() < deadline:
            try:
                line = self._answers.get(timeout=0.2)
            except queue.Empty:
                continue
            if line is None:
                self._answers.put(None)  # that nothing more comes is news to `_ended`, too
                break
            with contextlib.suppress(json.JSONDecodeError):
                answer = json.loads(line)
                if isinstance(answer, dict) and "endpoint" in answer:
                    return answer
                last_words = _words_of(answer) or last_words
        if self._ending or not self._wanted:
            raise DriverEnded(f"{self.name}: stopped while Spark was starting")
        if driver.poll() is None and self._clock.monotonic() >= deadline:
            raise DriverEnded(f"{self.name}: the Spark driver was not up within {START_TIMEOUT_S:g} s")
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(END_TIMEOUT_S)
        raise self._ended(driver, last_words)

    def _connect(self, answer: dict[str, Any]) -> ApplyControlClient:
        from protos.apply_link import ApplyControlClient

        self._latest = {**self._latest, "endpoint": answer["endpoint"]}
        return ApplyControlClient(str(answer["endpoint"]))

    def _ended(self, driver: subprocess.Popen[str], heard: Mapping[str, Any] | None = None) -> StreamsError:
        """Why the driver ended: its own last words, of which some may have been heard already, or how its process ended."""
        last_words = dict(heard or {})
        with contextlib.suppress(queue.Empty):
            # The pipe ends with the process: its reader puts None behind the last line.
            while (line := self._answers.get(timeout=_LAST_WORDS_TIMEOUT_S)) is not None:
                with contextlib.suppress(json.JSONDecodeError, TypeError):
                    last_words = _words_of(json.loads(line)) or last_words
        if last_words:
            kind = DriverEnded if last_words.get("retry") == Retry.TIMED.value else DriverRefused
            message = f"{self.name}: {last_words['error']}: {last_words.get('message', '')}"
            return kind(message, hint=str(last_words.get("hint", "")))
        code = driver.poll()
        how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"ended with code {code}"
        return DriverEnded(f"{self.name}: the Spark driver {how}", hint=f"see {self._log_file}")

    @property
    def _driver_file(self) -> Any:  # noqa: ANN401 - a Path
        return self._folder / "driver.json"

    def _remember(self, pid: int) -> None:
        process = psutil.Process(pid)
        self._driver_file.write_text(json.dumps({"pid": pid, "created": process.create_time()}) + "\n", encoding="utf-8")

    def _end_predecessor(self) -> None:
        """Wait until the driver of this actor's earlier life is gone; its standard input closed with that life."""
        try:
            known = json.loads(self._driver_file.read_text(encoding="utf-8"))
            process = psutil.Process(int(known["pid"]))
            is_same = abs(process.create_time() - float(known["created"])) < 0.05
        except (FileNotFoundError, json.JSONDecodeError, KeyError, psutil.Error):
            return
        if not is_same:
            return
        for end_it in (lambda: None, process.terminate, process.kill):
            with contextlib.suppress(psutil.Error):
                end_it()
            if not psutil.wait_procs([process], timeout=END_TIMEOUT_S / 2)[1]:
                return
        raise DatabaseUnavailable(f"{self.name}: process {process.pid}, an older driver, cannot be ended")

    def errors(self) -> list[dict[str, Any]]:
        """The error queue of this apply process, as the destination tells it."""
        with self._destination() as destination:
            return [dataclasses.asdict(error) for error in destination.errors(self._spec.name, self._apply.name)]

    def error_batches(self, number: int) -> list[bytes]:
        """The serialized LCR batches of one error transaction."""
        with self._destination() as destination:
            return list(destination.error_batches(number))

    def _destination(self) -> contextlib.closing[DestinationDatabase]:
        from actors.runtime import actors_of

        site = self._apply.site
        dsn = str(actors_of(self._spec.name).call(f"site:{site}", "database_dsn"))
        return contextlib.closing(open_destination(access_to(self._spec.site(site), dsn)))


def _words_of(answer: object) -> dict[str, Any]:
    """What a driver says of its end; empty when it is something else."""
    return answer if isinstance(answer, dict) and "error" in answer else {}


def _read_lines(stream: IO[str] | None, answers: queue.SimpleQueue[str | None]) -> None:
    """Hand the driver's lines on; keeps reading, so that the driver never waits for a full pipe."""
    assert stream is not None
    for line in stream:
        answers.put(line)
    answers.put(None)


def _end_driver(driver: subprocess.Popen[str]) -> None:
    with contextlib.suppress(OSError):
        if driver.stdin is not None:
            driver.stdin.close()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            driver.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(END_TIMEOUT_S)
            return


def _plain(message: Any) -> dict[str, Any]:  # noqa: ANN401 - any generated message
    """A protobuf message as plain data; field names as in the .proto file, integers as integers."""
    answer: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            answer[field.name] = dict(value)
        elif field.message_type is not None:
            answer[field.name] = [_plain(item) for item in value] if field.is_repeated else _plain(value)
        elif field.is_repeated:
            answer[field.name] = list(value)
        else:
            answer[field.name] = value
    return answer


def _status_dict(status: Any) -> dict[str, Any]:  # noqa: ANN401 - an ApplyStatus
    plain = _plain(status)
    plain["rows_total"] = plain.pop("rows_applied")
    plain["transactions_total"] = plain.pop("transactions_applied")
    return plain


def build(spec: TopologySpec, name: str, fingerprint: str, *, keep_existing: Collection[str] = ()) -> ApplyHost:
    """Factory of the actor."""
    return ApplyHost(spec, name, fingerprint, keep_existing=keep_existing)
