#!/usr/bin/env bash
# Programs on the C API: the three of examples/ are built with pkg-config from an installation and run in one process and over
# nodes; their text is that of `swarm`. What is installed belongs together.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
for tool in cmake cc pkg-config; do command -v $tool >/dev/null || skip "needs $tool"; done
[ -f "$bin/libswarm.so" ] || skip "no libswarm.so in $bin"
model=$SN_TEST_MODEL prefix=$scratch/prefix

# -- an installation, and programs that are built with it

succeeds cmake --install "$bin" --prefix "$prefix"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
[ -f "$PKG_CONFIG_PATH/swarm.pc" ] || PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name swarm.pc)") LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH")
for name in generate chat probe; do
  succeeds cc -Wall -Wextra -Werror -o "$scratch/$name" "$here/../../examples/$name.c" $(pkg-config --cflags --libs swarm)
  [ "$(wc -l <"$here/../../examples/$name.c")" -lt 100 ] || fail "$name.c has 100 lines or more"
done
[ "$(pkg-config --modversion swarm)" = "$("$bin/swarm" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)" ] ||
  fail "swarm.pc and swarm have different versions"
if command -v scdoc >/dev/null; then
  for function in swarm $(sed -n 's/^SWARM_API [^(]*\(swarm_[a-z_]*\)(.*/\1/p' "$prefix/include/swarm.h"); do
    [ -s "$prefix/share/man/man3/$function.3" ] || fail "$function has no man page"
  done
  grep -q 'swarm_session_generate continues' "$prefix/share/man/man3/swarm.3" || fail "swarm(3) lacks the text of swarm.h"
else
  not_tested "man pages of the C API (there is no scdoc)"
fi

# -- they run

start_node a "$model" 0:10
wait_ready a
start_node b "$model" 10:20 --join "${address[a]}"
start_node c "$model" 20:30 --join "${address[a]}"
wait_ready b c

prompt="The capital of France is"
succeeds "$bin/swarm" generate --model "$model" --local all --prompt "$prompt" --max-tokens 64 --temperature 0 --json
query "$scratch/run.out" 'd["text"]' >"$scratch/expected"
for node in "" "${address[a]}"; do
  succeeds "$scratch/generate" "$model" "$prompt" $node
  cmp "$scratch/run.out" "$scratch/expected" || fail "generate ${node:-here} differs from swarm generate"
done

# The last line of probe is what the model says next. (Its quotes are around each token's text.)
succeeds "$bin/swarm" generate --model "$model" --local all --prompt "$prompt" --max-tokens 1 --temperature 0 --json
next=$(query "$scratch/run.out" 'd["text"]')
succeeds "$scratch/probe" "$model" "$prompt"
mv "$scratch/run.out" "$scratch/probed"
[ "$(wc -l <"$scratch/probed")" = 4 ] || fail "probe does not print four depths"
tail -1 "$scratch/probed" | grep -qF "after block  30: \"$next\"" || fail "after all blocks probe expects another token than swarm generate"
head -1 "$scratch/probed" | grep -qF "\"$next\"" && fail "a quarter of the blocks knows the answer: the range of blocks is not used"
succeeds "$scratch/probe" "$model" "$prompt" "${address[a]}"
cmp "$scratch/run.out" "$scratch/probed" || fail "probe differs over nodes"

printf 'Name one colour.\nAnd another one?\n' >"$scratch/turns"
chat() { timeout -k 2 120 "$@" <"$scratch/turns" 2>"$scratch/chat.err" || fail "exit code $?: $*"; }
chat "$bin/swarm" chat --model "$model" --local all --temperature 0 --max-tokens 200 >"$scratch/expected"
for node in "" "${address[a]}"; do
  chat "$scratch/chat" "$model" $node >"$scratch/answers"
  cmp "$scratch/answers" "$scratch/expected" || fail "chat ${node:-here} differs from swarm chat"
done

# Ctrl-C ends a generation that takes long.
slow a
start generate "$scratch/generate" "$model" "$prompt" "${address[a]}"
until=$(($(now_ms) + 60000))
until [ -s "$scratch/generate.out" ]; do
  kill -0 "${pid[generate]}" 2>/dev/null || fail "generate ended before it was interrupted"
  [ "$(now_ms)" -lt "$until" ] || fail "generate printed nothing within a minute"
  sleep 0.01
done
signal generate INT
wait_end generate 20
[ $rc = 1 ] && grep -q 'cancelled' "$scratch/generate.err" || fail "after Ctrl-C generate ended with $rc"

# Mistakes end with a sentence.
refuses 1 '^generate: .*/nowhere' "$scratch/generate" /nowhere text
refuses 1 '^generate: .*127.0.0.1:1' "$scratch/generate" "$model" text 127.0.0.1:1
