#!/usr/bin/env bash
# The tests of `make test`, in three sessions of pytest.
#
#     SLOW  first, alone: tests on real servers, four at a time. They take half the time of two; six are no faster, and neither are other tests beside them.
#     Ray   then, one at a time: two at a time meet time limits of Ray's own (a node that is not up after 30 s). Processes that start and tests that wait
#           for them leave a quarter to a third of two cores idle.
#     FAST  beside Ray, at low priority: what needs the processor and no server, with a minute of simulated topologies (`make check` runs one seed of each).
#
# Takes the folder of the programs and the folders of the tests: test.sh BIN "FAST" "SLOW". What FAST printed comes last.
set -uo pipefail

read -ra fast <<<"$2"
read -ra slow <<<"$3"
python="$1/python"

failed=0
HEADRACE_SIMULATION_SECONDS=60 "$python" -m pytest -n 4 --durations 10 -m 'not cluster' "${slow[@]}" || failed=1

report=$(mktemp)
HEADRACE_SIMULATION_SECONDS=60 nice -n 10 "$python" -m pytest -n 2 --durations 10 -m 'not cluster' "${fast[@]}" >"$report" 2>&1 &
beside=$!
end_beside() {
    if kill -INT "$beside" 2>/dev/null; then wait "$beside"; fi
    rm -f "$report"
}
trap end_beside EXIT

"$python" -m pytest --durations 20 -m cluster "${fast[@]}" "${slow[@]}" || failed=1
wait "$beside" || failed=1
cat "$report"
exit "$failed"
