#!/usr/bin/env bash
# README's first command in a copy of the sources, as someone runs it who has just cloned them. ccache has the objects of the build
# beside, so that it does not compile everything once more.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
command -v ccache >/dev/null || skip "there is no ccache, and compiling everything again takes minutes"
[ -n "${SN_TEST_MODEL:-}" ] || skip "the real model could not be fetched"
cd "$here/../.." || exit 1
mkdir "$scratch/clone"
git ls-files -co --exclude-standard -z | xargs -0 cp -a --parents -t "$scratch/clone" || fail "the sources cannot be copied"
cd "$scratch/clone" || exit 1
if [ -n "$cache" ]; then SWARM_CACHE=$cache; else unset SWARM_CACHE; fi
export CCACHE_BASEDIR=$scratch/clone CCACHE_NOHASHDIR=1
timeout -k 5 500 nice scripts/quickstart.sh --prompt "Once upon a time" --max-tokens 8 >"$scratch/text" 2>"$scratch/quickstart.err" </dev/null ||
  fail "the quickstart ended with $?"
grep -q "[a-z] [a-z]" "$scratch/text" || fail "the quickstart's text is '$(cat "$scratch/text")'"
[ "$(grep -c '^  node[0-2] at 127.0.0.1:' "$scratch/quickstart.err")" = 3 ] || fail "it did not name its three nodes"
