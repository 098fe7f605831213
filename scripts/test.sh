#!/usr/bin/env bash
# The tests of `make test`, in three sessions of pytest.
#
#     FAST  beside the others, at low priority: what needs the processor and no server, with a minute of simulated topologies (`make check` runs one seed
#           of each). Tests on real servers wait for disks, those on Ray and Spark for processes that start: that is a third of the machine's time.
#     SLOW  tests on real servers, four at a time: they take half the time of two, and six are no faster.
#     Ray   one at a time: two at a time meet time limits of Ray's own (a node that is not up after 30 s).
#
# Takes the folder of the programs and the folders of the tests: test.sh BIN "FAST" "SLOW". What FAST printed comes last.
set -uo pipefail

read -ra fast <<<"$2"
read -ra slow <<<"$3"
python="$1/python"
export HEADRACE_SIMULATION_SECONDS=60

report=$(mktemp)
nice -n 10 "$python" -m pytest -n 2 --durations 10 -m 'not cluster' "${fast[@]}" >"$report" 2>&1 &
beside=$!
end_beside() {
    if kill -INT "$beside" 2>/dev/null; then wait "$beside"; fi
    rm -f "$report"
}
trap end_beside EXIT

failed=0
"$python" -m pytest -n 4 --durations 10 -m 'not cluster' "${slow[@]}" || failed=1
env -u HEADRACE_SIMULATION_SECONDS "$python" -m pytest --durations 20 -m cluster "${fast[@]}" "${slow[@]}" || failed=1
wait "$beside" || failed=1
cat "$report"
exit "$failed"
