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
FUZZ_SECONDS=${FUZZ_SECONDS:-10}
MUTANTS=${MUTANTS:-8}
# A warning ends the release build, and clang's that of the fuzz targets; clang-tidy (check.sh --tidy) reports clang's in all files.
# Under sanitizers GCC warns of what is none.
export SN_STRICT=-DSN_STRICT=ON
# Builds of the same sources in other folders find the same objects, also where a test builds without -Werror.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1 CCACHE_IGNOREOPTIONS=-Werror
# All of them, and later runs, find the XPU's kernels that PoCL has compiled.
export POCL_CACHE_DIR=${POCL_CACHE_DIR:-$cache/pocl}

# Under AddressSanitizer and UndefinedBehaviorSanitizer runs what handles bytes from outside or memory with several owners: that is
# every unit program but these, whose arithmetic takes minutes under sanitizers:
WITHOUT_ASAN=(
  # test_cpu_conformance runs the same kernels over awkward shapes
  test_bits test_train test_tiles test_golden test_cpu_device test_cpu_attention
  # the emulations' kernels are compiled without sanitizers; test_cuda_device, test_cuda_records, test_xpu and test_emulated_memory run
  # their hosts' side
  test_cuda_conformance test_xpu_conformance
  test_emulated_devices test_emulated_head test_emulated_offload test_emulated_parts test_emulated_recurrent test_emulated_tensors
  test_xpu_decode
  # its bytes are one well-formed file; test_gguf, test_tokenizer and the fuzz targets read others, test_cli and the system tests below
  # run the same program
  test_real_model
)
# The programs themselves run under sanitizers through these system tests: all messages, all kinds of failure, the files.
WITH_ASAN=(chat failover chain flood protocol private_swarm adapter session_file audit status serve)
WITH_TSAN=(chain failover adapter serve_at_once expert_group)

[ $quick = no ] || export SN_TEST_PACKAGES=${SN_TEST_PACKAGES:-few}

need_packages $BUILD_PACKAGES $TEST_PACKAGES $DEVICE_PACKAGES
[ $quick = yes ] || need_packages $ARM64_PACKAGES
passed=0 failed=0 skipped=0
scratch=$(mktemp -d); export scratch; trap 'rm -rf "$scratch"' EXIT
# All that a test starts has this in its environment, a folder or file of this run; what still has it when the test has ended is its fault.
export SN_TEST_PROCESS=$scratch
report() { # report NAME STATUS: one line a test that is no Criterion suite
  if [ "$2" = 0 ]; then passed=$((passed + 1)); echo "  ok      $1"; else failed=$((failed + 1)); echo "  FAILED  $1"; fi
}

# cost PART NAME COMMAND...: runs the command; "PART NAME SECONDS USER SYSTEM" goes to the list that the run ends with.
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

# why_failed OUTPUT: prints the cause first (the reports of Criterion and the sanitizers), and then the end of the output.
why_failed() {
  grep -a -m 60 '^\[----\] \+[^ ]\|^\[FAIL\]\|runtime error: ' <<<"$1"
  sed -n '/\(ERROR\|WARNING\): [A-Za-z]*Sanitizer/,/^SUMMARY: /p' <<<"$1" | head -n 100
  echo "  it ended with:"
  tail -n 40 <<<"$1"
}

# unit_one PART PROGRAM: runs a Criterion program and prints "PASSED FAILED SKIPPED SECONDS PROGRAM LOG" (Criterion does not count
# skipped tests as tested). The file LOG holds the output to show.
unit_one() {
  local out rc synthesis t f c began=$SECONDS
  out=$(cost "$1" "${2#"$PWD"/}" timeout 900 "$2" --jobs 2 2>&1); rc=$?
  synthesis=$(grep -a 'Synthesis: Tested' <<<"$out" | tail -1)
  t=$(sed -n 's/.*Tested: [^0-9]*\([0-9]*\).*/\1/p' <<<"$synthesis")
  f=$(grep -o 'Failing: [^0-9]*[0-9]*' <<<"$synthesis" | grep -o '[0-9]*$'); c=$(grep -o 'Crashing: [^0-9]*[0-9]*' <<<"$synthesis" | grep -o '[0-9]*$')
  t=${t:-0} f=$((${f:-0} + ${c:-0})); local p=$((t - f))
  local broken=no
  if [ $rc -ne 0 ] && [ $f -eq 0 ] || grep -aq 'ERROR: LeakSanitizer\|SUMMARY: .*Sanitizer' <<<"$out"; then broken=yes; fi
  if only_foreign_leaks "$out"; then broken=no; fi
  if [ -z "$synthesis" ] || [ $broken = yes ]; then f=$((f + 1)); fi
  local log; log=$(mktemp -p "$scratch")
  { grep -a '^skipped: ' <<<"$out" | sort -u | sed 's/^/  /' | tee "$log.skipped"; [ $f -eq 0 ] || why_failed "$out"; } >"$log"
  echo "$p $f $(wc -l <"$log.skipped") $((SECONDS - began)) $2 $log"
}

# left_behind MARK: prints the processes that still run with this mark, and ends them. Those that are about to end have ten seconds.
left_behind() {
  local until=$((SECONDS + 10)) found= file
  while found=$(grep -lsz "^SN_TEST_PROCESS=$1" /proc/[0-9]*/environ); [ -n "$found" ] && [ $SECONDS -lt $until ]; do sleep 0.1; done
  for file in $found; do
    file=${file%/environ}
    echo "left behind: process ${file#/proc/}: $(tr '\0' ' ' 2>/dev/null <"$file/cmdline")"
    kill -KILL "${file#/proc/}" 2>/dev/null
  done
}

# only_foreign_leaks OUTPUT: whether its sanitizer reports are leaks that begin inside Criterion or pocl, which at times do not free
# what they made before they end: the allocation is theirs when the frame above the allocator is.
only_foreign_leaks() {
  ! grep -aq 'ERROR: AddressSanitizer\|runtime error:\|ThreadSanitizer' <<<"$1" &&
    awk '/^Direct leak of/ { all++; first = 1 } first && /#1 / { first = 0; if (/libcriterion\.so|libpocl\.so/) theirs++ }
      END { exit !(all > 0 && all == theirs) }' <<<"$1"
}

# program_one PART SCRIPT: runs a system test and prints "STATUS SECONDS SCRIPT LOG". A sanitizer's report is a failure, too.
program_one() {
  local log rc began=$SECONDS; log=$(mktemp -p "$scratch")
  mkdir "$log.reports"
  export ASAN_OPTIONS="log_path=$log.reports/asan:quarantine_size_mb=16" UBSAN_OPTIONS="log_path=$log.reports/ubsan:print_stacktrace=1"
  export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp:log_path=$log.reports/tsan"
  SN_TEST_PROCESS=$log cost "$1" "$2" timeout 900 bash "$2" >"$log" 2>&1; rc=$?
  if [ $rc = 0 ]; then grep '^not tested: ' "$log" >"$log.parts"; mv "$log.parts" "$log"; fi
  if [ -n "$(ls -A "$log.reports")" ]; then rc=1; head -n 60 "$log.reports"/* >>"$log"; fi
  left_behind "$log" >"$log.left"
  if [ -s "$log.left" ]; then rc=1; cat "$log.left" >>"$log"; fi
  echo "$rc $((SECONDS - began)) $2 $log"
}
export -f cost unit_one only_foreign_leaks left_behind program_one why_failed

# unit PART FOLDER [PROGRAM_NOT_TO_RUN...]: runs the Criterion programs of a build, two at a time, the longest first, so that none
# runs alone at the end.
unit() {
  local p f s seconds program log part=$1 folder=$2
  shift 2
  while read -r p f s seconds program log; do
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    if [ "$f" -ne 0 ]; then echo "  FAILED  ${program#"$root"/}"; else echo "  ok      ${program#"$root"/} ($p, $seconds s)"; fi
    cat "$log"
  done < <({ for program in emulated_devices emulated_offload emulated_tensors cuda_conformance bits cuda_device xpu_conformance; do
      find "$folder/tests" -maxdepth 1 -name "test_$program" -type f; done
    find "$folder/tests" -maxdepth 1 -name 'test_*' -type f -perm -u+x | sort; } | awk '!seen[$0]++' |
    grep -vxF -f <(printf "$folder/tests/%s\n" "$@") | xargs -P 2 -I{} bash -c "unit_one '$part' {}")
}

# programs PART SCRIPT...: runs system tests, three at a time: they mostly wait, and each has its own folders and ports.
programs() {
  local rc seconds script log part=$1
  shift
  while read -r rc seconds script log; do
    if [ "$rc" = 77 ]; then skipped=$((skipped + 1)); echo "  skipped: $script: $(cat "$log")"
    else report "$script ($seconds s)" "$rc"; fi
    if [ "$rc" = 0 ]; then skipped=$((skipped + $(wc -l <"$log"))); sed "s|^not tested: |  skipped: $script: |" "$log"
    elif [ "$rc" != 77 ]; then tail -n 60 "$log"; fi
  done < <(printf '%s\n' "$@" | awk '!seen[$0]++' | xargs -P 3 -I{} bash -c "program_one '$part' {}")
}

threads() {
  local dir=$1 program out rc
  for program in "$dir"/tests/threads_*; do
    [ -x "$program" ] || continue
    out=$(cost threads "$program" timeout 600 "$program" 2>&1); rc=$?
    report "${program#"$root"/}" $rc
    [ $rc = 0 ] || why_failed "$out"
  done
}

# Builds with AddressSanitizer and UndefinedBehaviorSanitizer, with ThreadSanitizer, and with clang for libFuzzer: only the targets
# that run below.
sanitizer_builds() {
  local names SN_STRICT=
  names=$(basename -s .c tests/unit/test_*.c)
  TARGETS=(test_sim swarm swarm-node scripted_chat $(grep -vxF -f <(printf '%s\n' "${WITHOUT_ASAN[@]}") <<<"$names"))
  cost builds asan build build-asan -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE="address;undefined"
  TARGETS=(swarm swarm-node $(basename -s .c tests/threads/*.c | sed 's/^/threads_/'))
  cost builds tsan build build-tsan -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE=thread
  TARGETS=($(basename -s .c tests/fuzz/fuzz_*.c))
  cost builds fuzz build build-fuzz -DSN_TESTS=ON -DSN_CUDA=OFF -DCMAKE_C_COMPILER=clang -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSN_SANITIZE="address;undefined" -DSN_FUZZ=ON -DSN_STRICT=ON
  cost builds arm64 bash tests/system/test_arm64.sh build
  return 0
}

# fuzz_one PROGRAM SECONDS: replays the corpus of a target, and fuzzes for so long (0: not at all).
fuzz_one() {
  local program=$1 name log corpus much=-max_total_time=$2; name=$(basename "$program"); log=$(mktemp -p "$scratch"); corpus=$(mktemp -d -p "$scratch")
  [ "$2" != 0 ] || much=-runs=0
  if cost fuzz "$name" timeout $(($2 + 120)) "$program" $much -rss_limit_mb=2048 -timeout=60 \
    -close_fd_mask=1 -artifact_prefix="$corpus/" "$corpus" "tests/fuzz/corpus/${name#fuzz_}" >"$log" 2>&1; then echo "ok $name"; else echo "bad $name"; tail -60 "$log" >&2; fi
}
export -f fuzz_one

say "building (release)"
TARGETS=()
cost builds release build build -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_DHT=ON
say "checking includes, lengths, words, format, and what clang-tidy finds"
cost checks check.sh scripts/check.sh --tidy; report "scripts/check.sh --tidy finds nothing" $?
if model=$(real_model); then export SN_TEST_MODEL=$model; else say "no real model: the tests that need it are skipped"; fi

say "unit tests (release)"
unit unit build
command -v nvcc >/dev/null || { skipped=$((skipped + 1)); echo "  skipped: the CUDA backend is not compiled, because there is no nvcc"; }
# The system tests mostly wait: the builds with sanitizers run concurrently, with the lowest priority.
if [ $quick = no ]; then build_log=$(mktemp -p "$scratch"); sanitizer_builds >"$build_log" 2>&1 & builder=$!; renice -n 19 -p $builder >/dev/null; fi
say "programs"
programs programs tests/system/test_failover.sh $(printf '%s\n' tests/{system,attacks}/test_*.sh | grep -v /test_arm64)

if [ $quick = no ]; then
  say "building with sanitizers, fuzz targets"
  tail -n +1 -f --pid=$builder "$build_log" >&2
  wait $builder || die "a build with sanitizers failed: see the compiler's messages above"
  # Installed GPU drivers load libraries in a way that crashes the sanitizers: only the tests' own driver is used.
  export ZE_ENABLE_ALT_DRIVERS=/nowhere.so
  # LLVM in PoCL gives a thread another signal stack on some processors, which AddressSanitizer cannot free at the thread's end.
  export ASAN_OPTIONS=use_sigaltstack=0
  say "ARM, emulated"
  programs programs tests/system/test_arm64.sh
  say "unit tests (ASan, UBSan)"
  unit asan build-asan "${WITHOUT_ASAN[@]}"
  say "programs (ASan, UBSan)"
  SN_BUILD=$root/build-asan programs asan $(printf 'tests/system/test_%s.sh\n' "${WITH_ASAN[@]}")
  say "threads, programs (TSan)"
  TSAN_OPTIONS="suppressions=$root/tests/tsan.supp halt_on_error=1" threads build-tsan
  SN_BUILD=$root/build-tsan programs tsan $(printf 'tests/system/test_%s.sh\n' "${WITH_TSAN[@]}")
  say "fuzzing, $FUZZ_SECONDS s each, two at once: every second target, the others tomorrow; the corpus of all"
  while read -r verdict name; do
    [ "$verdict" = ok ]; report "$name" $?
  done < <(find build-fuzz/tests -maxdepth 1 -name 'fuzz_*' -type f -perm -u+x | sort |
    awk -v day="$(($(date +%s) / 86400))" -v s="$FUZZ_SECONDS" '{print $0, (NR + day) % 2 ? s : 0}' | xargs -P 2 -L 1 bash -c 'fuzz_one "$1" "$2"' _)
  say "mutants, $MUTANTS drawn by the date"
  cost mutants mutants scripts/mutants.sh --drawn "$MUTANTS"; report "$MUTANTS protections are missed when they are removed" $?
else
  threads build
fi

SN_TEST_PROCESS='' left_behind "$scratch" >"$scratch/left"
[ ! -s "$scratch/left" ]; report "no process of the tests goes on" $?
cat "$scratch/left"
echo
costs
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
