#!/usr/bin/env bash
# Runs one test as ctest asks for it:
#     run.sh unit PROGRAM SOURCE   the Criterion tests of a source      run.sh script FILE    a script of system/ or attacks/
#     run.sh threads PROGRAM       a plain program                      run.sh fuzz PROGRAM   its corpus, then FUZZ_SECONDS of fuzzing
# Exit 77: skipped. A sanitizer's report and a process that goes on fail it, too. With SN_RESULTS, a folder, it adds to the files there
# what scripts/test.sh ends with: `counts` (PASSED FAILED SKIPPED), `costs` (KIND NAME, seconds: all, user, system), `skipped` (names).
set -uo pipefail
kind=$1 test=$2 source=${3:-}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1
name=${source:-$test} name=${name#"$root"/} name=${name#tests/}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out passed=0 failed=0 skipped=0

# measured COMMAND...: runs it with its output in $out.
measured() {
  local TIMEFORMAT='%R %U %S' rc
  { time SN_TEST_PROCESS=$work "$@" >"$out" 2>&1; } 2>"$work/times"; rc=$?
  [ -z "${SN_RESULTS:-}" ] || echo "${SN_KIND:-$kind} $name $(tail -n 1 "$work/times")" >>"$SN_RESULTS/costs"
  return $rc
}

# why: prints the cause first (the reports of Criterion and the sanitizers), and then the end of the output.
why() {
  grep -a -m 60 '^\[----\] \+[^ ]\|^\[FAIL\]\|runtime error: ' "$out"
  sed -n '/\(ERROR\|WARNING\): [A-Za-z]*Sanitizer/,/^SUMMARY: /p' "$out" | head -n 100
  echo "  it ended with:"
  tail -n 60 "$out"
}

# only_foreign_leaks: whether the sanitizers' reports are leaks that begin inside Criterion or pocl, which at times do not free what
# they made before they end: the allocation is theirs when the frame above the allocator is.
only_foreign_leaks() {
  ! grep -aq 'ERROR: AddressSanitizer\|runtime error:\|ThreadSanitizer' "$out" &&
    awk '/^Direct leak of/ { all++; first = 1 } first && /#1 / { first = 0; if (/libcriterion\.so|libpocl\.so/) theirs++ }
      END { exit !(all > 0 && all == theirs) }' "$out"
}

# left_behind: prints the processes that still run with this test's mark, and ends them. Those that are about to end have ten seconds.
left_behind() {
  local until=$((SECONDS + 10)) found= file
  while found=$(grep -lsz "^SN_TEST_PROCESS=$work" /proc/[0-9]*/environ); [ -n "$found" ] && [ $SECONDS -lt $until ]; do sleep 0.1; done
  for file in $found; do
    file=${file%/environ}
    echo "left behind: process ${file#/proc/}: $(tr '\0' ' ' 2>/dev/null <"$file/cmdline")"
    kill -KILL "${file#/proc/}" 2>/dev/null
  done
}

# The suites that stand in the source, or one of its name, where a list that it includes has the tests.
suites() {
  local found
  found=$(sed -nE 's/^ *[A-Za-z]*Test[A-Za-z]*\(([a-z0-9_]+),.*/\1/p' "$source" | sort -u | paste -sd '|')
  [ -n "$found" ] || { found=$(basename -s .c "$source"); found=${found#test_}; }
  echo "@($found)"
}

unit() {
  local rc
  measured timeout 900 "$test" --jobs 2 --tap="$work/tap" --filter "$(suites)/*"; rc=$?
  failed=$(grep -ac '^not ok' "$work/tap") passed=$(grep -a '^ok ' "$work/tap" | grep -avc '# SKIP') # SKIP: those of other sources, too
  grep -a '^skipped: ' "$out" | sort -u >"$work/skipped"
  skipped=$(wc -l <"$work/skipped")
  if [ $((passed + failed + skipped)) = 0 ]; then failed=1; fi # no test has run
  if [ $failed = 0 ] && { [ $rc != 0 ] || grep -aq 'ERROR: LeakSanitizer\|SUMMARY: .*Sanitizer' "$out"; } && ! only_foreign_leaks; then failed=1; fi
}

script() {
  local rc
  mkdir "$work/reports"
  export ASAN_OPTIONS="log_path=$work/reports/asan:quarantine_size_mb=16" UBSAN_OPTIONS="log_path=$work/reports/ubsan:print_stacktrace=1"
  export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp:log_path=$work/reports/tsan"
  measured timeout 900 bash "$test"; rc=$?
  if [ $rc = 77 ]; then
    skipped=1
    echo "skipped: $name: $(tail -n 1 "$out")" >"$work/skipped"
  else
    sed -n "s|^not tested: |skipped: $name: |p" "$out" >"$work/skipped"
    skipped=$(wc -l <"$work/skipped")
    if [ $rc = 0 ]; then passed=1; else failed=1; fi
  fi
  if [ -n "$(ls -A "$work/reports")" ]; then failed=1 passed=0; head -n 60 "$work/reports"/* >>"$out"; fi
}

threads() {
  export TSAN_OPTIONS="suppressions=$root/tests/tsan.supp halt_on_error=1"
  if measured timeout 600 "$test"; then passed=1; else failed=1; fi
}

# Half of the targets are fuzzed, those with an even sum of name and day; the corpus of each is read every time.
fuzz() {
  local target much seconds=${FUZZ_SECONDS:-10}
  target=$(basename "$test") target=${target#fuzz_}
  much=-max_total_time=$seconds
  [ $((($(cksum <<<"$target" | cut -d' ' -f1) + $(date +%s) / 86400) % 2)) = 0 ] || much=-runs=0
  mkdir "$work/corpus"
  if measured timeout $((seconds + 120)) "$test" "$much" -rss_limit_mb=2048 -timeout=60 -close_fd_mask=1 -artifact_prefix="$work/corpus/" \
    "$work/corpus" "tests/fuzz/corpus/$target"; then passed=1; else failed=1; fi
}

: >"$work/skipped"
$kind
left_behind >"$work/left"
if [ -s "$work/left" ]; then failed=$((failed + 1)); cat "$work/left" >>"$out"; fi
[ -z "${SN_RESULTS:-}" ] || { echo "$passed $failed $skipped" >>"$SN_RESULTS/counts"; cat "$work/skipped" >>"$SN_RESULTS/skipped"; }
cat "$work/skipped"
if [ $failed != 0 ]; then why; exit 1; fi
[ $passed != 0 ] || exit 77
