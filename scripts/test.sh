#!/usr/bin/env bash
# Installs what the tests need, builds, runs all of them, and ends with what they cost and "N passed, N failed, N skipped".
# --quick leaves out sanitizers, fuzzing and mutants. Every test that this machine cannot run is listed by its name as skipped.
set -uo pipefail
shopt -s nullglob
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
quick=no
case "${1:-}" in
  "") ;;
  --quick) quick=yes ;;
  *) die "usage: scripts/test.sh [--quick]" ;;
esac
MUTANTS=${MUTANTS:-8}
# A warning ends the release build, and clang's that of the fuzz targets; clang-tidy (check.sh --tidy) reports clang's in all files.
# Under sanitizers GCC warns of what is none.
export SN_STRICT=-DSN_STRICT=ON
# Builds of the same sources in other folders find the same objects, also where a test builds without -Werror.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1 CCACHE_IGNOREOPTIONS=-Werror
# All of them, and later runs, find the XPU's kernels that PoCL has compiled.
export POCL_CACHE_DIR=${POCL_CACHE_DIR:-$cache/pocl}

[ $quick = no ] || export SN_TEST_PACKAGES=${SN_TEST_PACKAGES:-few}

need_packages $BUILD_PACKAGES $TEST_PACKAGES $DEVICE_PACKAGES
[ $quick = yes ] || need_packages $ARM64_PACKAGES
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
export SN_RESULTS=$scratch SN_KIND # where tests/run.sh writes what each test gave and took; the part of the run that it belongs to
: >"$scratch/counts" >"$scratch/costs" >"$scratch/skipped"
# report NAME STATUS: one line of a test that ctest does not run
report() {
  if [ "$2" = 0 ]; then echo "1 0 0" >>"$scratch/counts"; echo "  ok      $1"; else echo "0 1 0" >>"$scratch/counts"; echo "  FAILED  $1"; fi
}
failures() { awk '{f += $2} END {print f + 0}' "$scratch/counts"; }
skipped() { echo "0 0 1" >>"$scratch/counts"; echo "skipped: $*" >>"$scratch/skipped"; }

# cost PART NAME COMMAND...: runs the command; what it took goes to the list that the run ends with.
cost() {
  local part=$1 name=$2 rc times TIMEFORMAT='%R %U %S'; times=$(mktemp -p "$scratch"); shift 2
  { time "$@" 2>&3; } 3>&2 2>"$times"; rc=$?
  echo "$part $name $(tail -n 1 "$times")" >>"$scratch/costs"
  return $rc
}
costs() {
  echo "the ten slowest (seconds, of them on a CPU):"
  awk '$1 != "builds" {printf "  %6.0f %6.0f  %s %s\n", $3, $4 + $5, $1, $2}' "$scratch/costs" | sort -rn | head
  echo "CPU minutes:"
  awk '{part[$1] += $4 + $5; part["in all"] += $4 + $5} END {for (p in part) printf "  %6.1f  %s\n", part[p] / 60, p}' "$scratch/costs" | sort -n
}

# tests PART BUILD AT_ONCE [CTEST_OPTION...]: runs the tests of a build that the options choose, so many at once. System tests mostly
# wait, and each has folders and ports of its own.
tests() {
  local before; before=$(failures)
  SN_KIND=$1 ctest --test-dir "$2" -j "$3" --output-on-failure --no-tests=error "${@:4}" | sed '/^ *Start /d; /^Internal ctest/d'
  [ "${PIPESTATUS[0]}" = 0 ] || [ "$(failures)" != "$before" ] || report "$1: ctest" 1 # which counts nothing that it ends itself
}

# Builds with AddressSanitizer and UndefinedBehaviorSanitizer, with ThreadSanitizer, and with clang for libFuzzer: only the targets
# that run below.
sanitizer_builds() {
  local SN_STRICT= rooms
  rooms=$(find tests/unit -name 'test_*.c' -printf '%P\n' | sed 's|/[^/]*$||; s|/|_|g; s|^|test_|' | sort -u)
  TARGETS=(test_sim swarm swarm-node scripted_chat $rooms)
  cost builds asan build build-asan -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE="address;undefined"
  TARGETS=(swarm swarm-node $(basename -s .c tests/threads/*.c | sed 's/^/threads_/'))
  cost builds tsan build build-tsan -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE=thread
  TARGETS=($(basename -s .c tests/fuzz/fuzz_*.c))
  cost builds fuzz build build-fuzz -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE="address;undefined" -DSN_FUZZ=ON -DSN_STRICT=ON
  cost builds arm64 bash tests/system/test_arm64.sh build
  return 0
}

say "building (release)"
TARGETS=()
cost builds release build build -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_DHT=ON
say "checking includes, lengths, words, format, and what clang-tidy finds"
cost checks check.sh scripts/check.sh --tidy; report "scripts/check.sh --tidy finds nothing" $?
if model=$(real_model); then export SN_TEST_MODEL=$model; else say "no real model: the tests that need it are skipped"; fi

say "unit tests (release)"
tests unit build 2 -L unit
command -v nvcc >/dev/null || skipped "the CUDA backend is not compiled, because there is no nvcc"
# The system tests mostly wait: the builds with sanitizers run concurrently, with the lowest priority.
if [ $quick = no ]; then build_log=$(mktemp -p "$scratch"); sanitizer_builds >"$build_log" 2>&1 & builder=$!; renice -n 19 -p $builder >/dev/null; fi
say "programs"
tests programs build 3 -L 'system|attacks' -E system/arm64

if [ $quick = no ]; then
  say "building with sanitizers, fuzz targets"
  tail -n +1 -f --pid=$builder "$build_log" >&2
  wait $builder || die "a build with sanitizers failed: see the compiler's messages above"
  # Installed GPU drivers load libraries in a way that crashes the sanitizers: only the tests' own driver is used.
  export ZE_ENABLE_ALT_DRIVERS=/nowhere.so
  # LLVM in PoCL gives a thread another signal stack on some processors, which AddressSanitizer cannot free at the thread's end.
  export ASAN_OPTIONS=use_sigaltstack=0
  say "ARM, emulated"
  tests programs build 1 -R system/arm64
  say "unit tests, programs (ASan, UBSan)"
  tests asan build-asan 2 -L unit
  tests asan build-asan 3 -L system
  say "threads, programs (TSan)"
  tests tsan build-tsan 3 -L 'threads|system'
  say "fuzzing"
  tests fuzz build-fuzz 2 -L fuzz
  say "mutants, $MUTANTS drawn by the date"
  cost mutants mutants scripts/mutants.sh --drawn "$MUTANTS"; report "$MUTANTS protections are missed when they are removed" $?
else
  tests threads build 1 -L threads
fi

echo
sort -u "$scratch/skipped"
costs
read -r passed failed skipped < <(awk '{p += $1; f += $2; s += $3} END {print p + 0, f + 0, s + 0}' "$scratch/counts")
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
