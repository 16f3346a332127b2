#!/usr/bin/env bash
# Installs what the tests need, builds, runs all of them, and ends with "N passed, N failed". --quick leaves out sanitizers
# and fuzzing.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
quick=no
case "${1:-}" in
  "") ;;
  --quick) quick=yes ;;
  *) die "usage: scripts/test.sh [--quick]" ;;
esac
FUZZ_SECONDS=${FUZZ_SECONDS:-20}

need_packages $BUILD_PACKAGES $TEST_PACKAGES $DEVICE_PACKAGES
passed=0 failed=0 skipped=0
report() { # report NAME STATUS: one line a test that is no Criterion suite
  if [ "$2" = 0 ]; then passed=$((passed + 1)); echo "  ok      $1"; else failed=$((failed + 1)); echo "  FAILED  $1"; fi
}

# why_failed OUTPUT: prints the cause first (the reports of Criterion and the sanitizers), and then the end of the output.
why_failed() {
  grep -a -m 60 '^\[----\] \+[^ ]\|^\[FAIL\]\|runtime error: ' <<<"$1"
  sed -n '/\(ERROR\|WARNING\): [A-Za-z]*Sanitizer/,/^SUMMARY: /p' <<<"$1" | head -n 100
  echo "  it ended with:"
  tail -n 40 <<<"$1"
}

# unit_one PROGRAM: runs a Criterion program and prints "PASSED FAILED SKIPPED SECONDS PROGRAM LOG" (Criterion does not count skipped
# tests as tested). The file LOG holds the output to show.
unit_one() {
  local out rc synthesis t f c began=$SECONDS
  out=$(timeout 900 "$1" --jobs 2 2>&1); rc=$?
  synthesis=$(grep -a 'Synthesis: Tested' <<<"$out" | tail -1)
  t=$(sed -n 's/.*Tested: [^0-9]*\([0-9]*\).*/\1/p' <<<"$synthesis")
  f=$(grep -o 'Failing: [^0-9]*[0-9]*' <<<"$synthesis" | grep -o '[0-9]*$'); c=$(grep -o 'Crashing: [^0-9]*[0-9]*' <<<"$synthesis" | grep -o '[0-9]*$')
  t=${t:-0} f=$((${f:-0} + ${c:-0})); local p=$((t - f))
  if [ -z "$synthesis" ] || { [ $rc -ne 0 ] && [ $f -eq 0 ]; } || grep -aq 'ERROR: LeakSanitizer\|SUMMARY: .*Sanitizer' <<<"$out"; then f=$((f + 1)); fi
  local log; log=$(mktemp)
  { grep -a '^skipped: ' <<<"$out" | sort -u | sed 's/^/  /'; [ $f -eq 0 ] || why_failed "$out"; } >"$log"
  echo "$p $f $(grep -ac '^skipped: ' <<<"$out") $((SECONDS - began)) $1 $log"
}

# program_one SCRIPT: runs a system test and prints "STATUS SECONDS SCRIPT LOG".
program_one() {
  local log rc began=$SECONDS
  log=$(mktemp)
  timeout 600 bash "$1" >"$log" 2>&1; rc=$?
  [ $rc = 0 ] && : >"$log"
  echo "$rc $((SECONDS - began)) $1 $log"
}
export -f unit_one program_one why_failed

# unit FOLDER: runs every Criterion program of a build, two at a time, the longest first, so that none runs alone at the end.
unit() {
  local p f s seconds program log
  while read -r p f s seconds program log; do
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -ne 0 ]; then echo "  FAILED  ${program#"$root"/}"; else echo "  ok      ${program#"$root"/} ($p, $seconds s)"; fi
    cat "$log"; rm -f "$log"
  done < <({ for program in emulated_devices cuda_conformance cuda_device xpu_conformance; do find "$1/tests" -maxdepth 1 -name "test_$program" -type f; done
    find "$1/tests" -maxdepth 1 -name 'test_*' -type f -perm -u+x | sort; } | awk '!seen[$0]++' | xargs -P 2 -I{} bash -c 'unit_one {}')
}

# Runs every system test, two at a time: they mostly wait, and each has its own folders and ports.
programs() {
  local rc seconds script log
  while read -r rc seconds script log; do
    if [ "$rc" = 77 ]; then skipped=$((skipped + 1)); echo "  skipped: $script: $(cat "$log")"
    else report "$script ($seconds s)" "$rc"; tail -n 60 "$log"; fi
    rm -f "$log"
  done < <(printf '%s\n' tests/system/test_failover.sh tests/system/test_*.sh | awk '!seen[$0]++' | xargs -P 2 -I{} bash -c 'program_one {}')
}

threads() {
  local dir=$1 program
  for program in "$dir"/tests/threads_*; do
    [ -x "$program" ] || continue
    out=$(timeout 600 "$program" 2>&1); rc=$?
    report "${program#"$root"/}" $rc
    [ $rc = 0 ] || why_failed "$out"
  done
}

# Builds with AddressSanitizer and UndefinedBehaviorSanitizer, with ThreadSanitizer, and with clang for libFuzzer: only the targets
# that run below.
sanitizer_builds() {
  local source
  TARGETS=(test_sim)
  for source in tests/unit/test_*.c; do TARGETS+=("$(basename "$source" .c)"); done
  build build-asan -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE="address;undefined"
  TARGETS=()
  for source in tests/threads/*.c; do TARGETS+=("threads_$(basename "$source" .c)"); done
  build build-tsan -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE=thread
  TARGETS=()
  for source in tests/fuzz/fuzz_*.c; do TARGETS+=("$(basename "$source" .c)"); done
  build build-fuzz -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE="address;undefined" -DSN_FUZZ=ON
}

say "building (release)"
TARGETS=()
build build -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_DHT=ON
say "checking includes, lengths, words, format, and what clang-tidy finds"
scripts/check.sh --tidy; report "scripts/check.sh --tidy finds nothing" $?
if model=$(real_model); then export SN_TEST_MODEL=$model; else say "no real model: the tests that need it are skipped"; fi

say "unit tests (release)"
unit build
# The system tests mostly wait: the builds with sanitizers run concurrently, with the lowest priority.
if [ $quick = no ]; then build_log=$(mktemp); sanitizer_builds >"$build_log" 2>&1 & builder=$!; renice -n 19 -p $builder >/dev/null; fi
say "programs"
programs

if [ $quick = no ]; then
  say "building with sanitizers, fuzz targets"
  tail -n +1 -f --pid=$builder "$build_log" >&2
  wait $builder || die "a build with sanitizers failed: see the compiler's messages above"
  rm -f "$build_log"
  say "unit tests (ASan, UBSan)"
  # Installed GPU drivers load libraries in a way that crashes the sanitizers: only the tests' own driver is used.
  export ZE_ENABLE_ALT_DRIVERS=/nowhere.so
  unit build-asan
  say "thread tests (TSan)"
  TSAN_OPTIONS="suppressions=$root/tests/tsan.supp halt_on_error=1" threads build-tsan
  say "fuzzing, $FUZZ_SECONDS s each, two at once"
  fuzz_one() {
    local program=$1 name log; name=$(basename "$program"); log=$(mktemp)
    local scratch; scratch=$(mktemp -d)
    if timeout $((FUZZ_SECONDS + 120)) "$program" -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=2048 -timeout=20 -close_fd_mask=3 \
      -artifact_prefix="$scratch/" "$scratch" "tests/fuzz/corpus/${name#fuzz_}" >"$log" 2>&1; then echo "ok $name"; else echo "bad $name"; tail -40 "$log" >&2; fi
    rm -rf "$log" "$scratch"
  }
  export -f fuzz_one; export FUZZ_SECONDS
  while read -r verdict name; do
    [ "$verdict" = ok ]; report "$name" $?
  done < <(find build-fuzz/tests -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | sort | xargs -P 2 -I{} bash -c 'fuzz_one {}')
else
  threads build
fi

echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
