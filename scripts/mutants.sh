#!/usr/bin/env bash
# Shows that the tests notice when a protection is gone: each patch in tests/mutants removes one, and the test that the patch names
# must then fail. usage: scripts/mutants.sh [--drawn N] [NAME...]   (all; N drawn by the date; the named ones, or those at a path from /)
#
# Each patch is applied to a view of this folder (overlayfs in a mount namespace of its own), so a mutant costs the files that it
# changes and one test; the tree and its build folder stay as they are. Where no overlay can be mounted, one copy is built.
# A patch begins with three lines that `git apply` ignores:
#     # removes: the protection, one sentence
#     # test: a command, from the repository root, that passes without the patch and fails with it
#     # builds: the ninja targets that the command needs
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export MUTANT_SECONDS=${MUTANT_SECONDS:-180} # of one test: a mutant that never ends is noticed, too

drawn=
if [ "${1:-}" = --drawn ]; then drawn=${2:?--drawn needs a number}; shift 2; fi
patches=()
for name; do [[ $name = /*.patch ]] && patches+=("$name") || patches+=("tests/mutants/$(basename "${name%.patch}").patch"); done
[ $# -gt 0 ] || patches=(tests/mutants/*.patch)
for patch in "${patches[@]}"; do [ -f "$patch" ] || die "there is no $patch"; done
[ -z "$drawn" ] || mapfile -t patches < <(for patch in "${patches[@]}"; do echo "$(sha256sum <<<"$(date +%F) $patch") $patch"; done |
  sort | head -n "$drawn" | awk '{print $NF}')

header() { sed -n "s/^# $1: //p; /^diff/q" "$2"; }
# run_test COMMAND: 77: the test was skipped, so it shows nothing here; 76: its filter matches no test.
run_test() {
  local out rc
  out=$(timeout -k 5 "$MUTANT_SECONDS" bash -c "$1" 2>&1 </dev/null); rc=$?
  if [ $rc = 0 ] && grep -aq 'Synthesis: Tested: [^0-9]*\b0\b' <<<"$out"; then out="no test has this name"; rc=76; fi
  tail -n 15 <<<"$out"
  return $rc
}
# without TEST: prints the test if it does not pass without any patch; its failure with a patch proves nothing.
without() {
  local out
  out=$(run_test "$1") || [ $? = 77 ] || { echo "$1"; printf 'fails without any patch: %s\n%s\n' "$1" "$out" >&2; }
}
# mutant PATCH: applies, builds, tests, and prints "VERDICT SECONDS s PATCH".
mutant() {
  local began=$SECONDS verdict out
  [ ! -f build/strict.options ] || : >build/strict.options # warnings are no verdict
  if ! out=$(git apply -C1 "$1" 2>&1); then verdict="does not apply"
  elif ! out=$(ninja -C build $(header builds "$1") 2>&1 | tail -n 15; exit "${PIPESTATUS[0]}"); then verdict="does not build"
  else
    out=$(run_test "$(header test "$1")")
    case $? in 0 | 76) verdict=SURVIVED ;; 77) verdict=skipped ;; *) verdict=killed out= ;; esac
  fi
  git apply -C1 -R "$1" 2>/dev/null
  printf '%-14s  %3s s  %s\n' "$verdict" $((SECONDS - began)) "$1"
  [ -z "$out" ] || sed 's/^/    /' <<<"$out"
}
# in_view PATCH: the same in a view of this folder that ends with the namespace.
in_view() {
  local dir; dir=$(mktemp -d)
  mkdir "$dir/upper" "$dir/work"
  $UNSHARE bash -c 'mount -t overlay overlay -o "lowerdir=$PWD,upperdir=$1/upper,workdir=$1/work" "$PWD" && cd "$PWD" && $2 "$3"' \
    _ "$dir" "${2:-mutant}" "$1"
  rm -rf "$dir"
}
export -f header run_test without mutant in_view
UNSHARE="unshare -m"; [ "$(id -u)" = 0 ] || UNSHARE="unshare -rm"
export UNSHARE

at_once=2 run=in_view
if [ "$(in_view here echo 2>/dev/null)" != here ]; then
  say "no overlay can be mounted here: a copy is built"
  copy=$(mktemp -d); trap 'rm -rf "$copy"' EXIT
  git ls-files -co --exclude-standard -z | xargs -0 cp -a --parents -t "$copy" && cd "$copy" || exit 1
  at_once=1 run=mutant
fi
TARGETS=(); for patch in "${patches[@]}"; do TARGETS+=($(header builds "$patch")); done
# Tests run CUDA's kernels on the CPU; nvcc would only compile those that a mutant changes, for each kind of GPU.
[ -f build/build.ninja ] || cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_CUDA=OFF >/dev/null || die "cmake failed"
ninja -C build "${TARGETS[@]}" >&2 || die "the build failed: see the messages of the compiler above"

# A test that is skipped here is no failure: its mutants are skipped below.
bad=$(for patch in "${patches[@]}"; do header test "$patch"; done | sort -u | tr '\n' '\0' | xargs -0 -P 2 -I{} bash -c 'without "$1"' _ {})
verdicts=$(printf '%s\n' "${patches[@]}" | xargs -P "$at_once" -I{} bash -c "$run {}" | tee >(cat >&2))
killed=$(grep -c '^killed ' <<<"$verdicts") skipped=$(grep -c '^skipped ' <<<"$verdicts")
[ -z "$bad" ] || echo "fail without any patch: $bad"
echo "$killed of ${#patches[@]} mutants killed, $skipped skipped"
[ -z "$bad" ] && [ $((killed + skipped)) = ${#patches[@]} ]
