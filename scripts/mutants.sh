#!/usr/bin/env bash
# Shows that the tests notice when a protection is gone: each mutant of tests/mutants/ROOM.txt removes one (scripts/mutants.py says how
# they are written), and its test must then fail.
# usage: scripts/mutants.sh [--drawn N] [ROOM|NAME...]   (all; N drawn by the date; those of rooms, named ones, or of files from /)
#
# Each is made in a view of this folder (overlayfs in a mount namespace of its own), so a mutant costs the files that it changes and one
# test; the tree and its build folder stay as they are. Where no overlay can be mounted, one copy is built.
#
# A test that runs into its limit says nothing yet: the machine may have been busy. It runs again, alone, and is killed if it hits the
# limit again; without the mutant it must end in half of it.
set -uo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export MUTANT_SECONDS=${MUTANT_SECONDS:-240} # of one test: a mutant that never ends is noticed, too

drawn=
if [ "${1:-}" = --drawn ]; then drawn=${2:?--drawn needs a number}; shift 2; fi
PLAN=$(mktemp); export PLAN # "ID <tab> targets <tab> command" of each
trap 'rm -rf "$PLAN" ${copy:+"$copy"}' EXIT
python3 scripts/mutants.py plan "$@" >"$PLAN" || exit 1
[ -z "$drawn" ] || while read -r line; do echo "$(sha256sum <<<"$(date +%F) ${line%%$'\t'*}" | cut -c1-64) $line"; done <"$PLAN" |
  sort | head -n "$drawn" | cut -c66- >"$PLAN.drawn" && mv "$PLAN.drawn" "$PLAN"

# field ID NUMBER: 2: its targets; 3: its command.
field() { awk -F '\t' -v id="$1" -v n="$2" '$1 == id {print $n; exit}' "$PLAN"; }
# run_test SECONDS COMMAND: 77: the test was skipped, so it shows nothing here; 76: its filter matches no test; 124: the limit.
run_test() {
  local out rc
  out=$(timeout -k 5 "$1" bash -c "$2" 2>&1 </dev/null); rc=$?
  if [ $rc = 0 ] && grep -aq 'Synthesis: Tested: [^0-9]*\b0\b' <<<"$out"; then out="no test has this name"; rc=76; fi
  [ $rc != 137 ] || rc=124
  tail -n 15 <<<"$out"
  return $rc
}
# without COMMAND: prints the test if it does not pass without any mutant, in half the limit; its failure with one proves nothing.
without() {
  local out
  out=$(run_test $((MUTANT_SECONDS / 2)) "$1") || [ $? = 77 ] || { echo "$1"; printf 'fails without any mutant: %s\n%s\n' "$1" "$out" >&2; }
}
# mutant ID: makes it, builds, tests, and prints "VERDICT SECONDS s ID".
mutant() {
  local began=$SECONDS verdict out
  [ ! -f build/strict.options ] || : >build/strict.options # warnings are no verdict
  if ! out=$(python3 scripts/mutants.py apply "$1" 2>&1); then verdict="does not apply"
  elif ! out=$(ninja -C build $(field "$1" 2) 2>&1 | tail -n 15; exit "${PIPESTATUS[0]}"); then verdict="does not build"
  else
    out=$(run_test "$MUTANT_SECONDS" "$(field "$1" 3)")
    case $? in 0 | 76) verdict=SURVIVED ;; 77) verdict=skipped ;; 124) verdict="timed out" ;; *) verdict=killed out= ;; esac
  fi
  printf '%-14s  %3s s  %s\n' "$verdict" $((SECONDS - began)) "$1"
  [ -z "$out" ] || sed 's/^/    /' <<<"$out"
}
# in_copy ID: the same in the copy, which is put right afterwards.
in_copy() { mutant "$1"; git checkout -q -- . ; }
# in_view ID: the same in a view of this folder that ends with the namespace.
in_view() {
  local dir; dir=$(mktemp -d)
  mkdir "$dir/upper" "$dir/work"
  $UNSHARE bash -c 'mount -t overlay overlay -o "lowerdir=$PWD,upperdir=$1/upper,workdir=$1/work" "$PWD" && cd "$PWD" && $2 "$3"' \
    _ "$dir" "${2:-mutant}" "$1"
  rm -rf "$dir"
}
export -f field run_test without mutant in_copy in_view
UNSHARE="unshare -m"; [ "$(id -u)" = 0 ] || UNSHARE="unshare -rm"
export UNSHARE

at_once=2 run=in_view
if [ "$(in_view here echo 2>/dev/null)" != here ]; then
  say "no overlay can be mounted here: a copy is built"
  copy=$(mktemp -d)
  git ls-files -co --exclude-standard -z | xargs -0 cp -a --parents -t "$copy" && cd "$copy" && git init -q && git add -A &&
    git -c user.name=mutants -c user.email= commit -qm "the tree" || exit 1
  at_once=1 run=in_copy
fi
mapfile -t TARGETS < <(cut -f 2 "$PLAN" | tr ' ' '\n' | sort -u)
# Tests run CUDA's kernels on the CPU; nvcc would only compile those that a mutant changes, for each kind of GPU.
[ -f build/build.ninja ] || cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_CUDA=OFF >/dev/null || die "cmake failed"
ninja -C build "${TARGETS[@]}" >&2 || die "the build failed: see the messages of the compiler above"

# A test that is skipped here is no failure: its mutants are skipped below.
bad=$(cut -f 3 "$PLAN" | sort -u | tr '\n' '\0' | xargs -0 -P 2 -I{} bash -c 'without "$1"' _ {})
verdicts=$(cut -f 1 "$PLAN" | xargs -P "$at_once" -I{} bash -c "$run {}" | tee >(cat >&2))
count() { grep -c "^$1 " <<<"$verdicts"; }
killed=$(count killed) skipped=$(count skipped) all=$(wc -l <"$PLAN")
for id in $(sed -n 's/^timed out .* s  //p' <<<"$verdicts"); do
  again=$($run "$id" | tee >(cat >&2))
  case $again in killed* | "timed out"*) killed=$((killed + 1)) ;; esac
done
[ -z "$bad" ] || echo "fail without any mutant: $bad"
echo "$killed of $all mutants killed, $skipped skipped"
[ -z "$bad" ] && [ $((killed + skipped)) = "$all" ]
