#!/usr/bin/env bash
# A chat as a person meets it, at a pseudoterminal: editing, pastes, history, commands, styles, stopping; and with lines of a pipe.
# Answers follow a script (tests/scripted/swarm.c), so that each byte is known.
. "$(dirname "$0")/lib.sh"

scripted=$bin/scripted_chat
[ -x "$scripted" ] || skip "scripted_chat is not built in $bin"
for case in ${CASES:-editing several_lines pastes history typed_ahead stopping commands sampling completion styles harmless log_lines signals suspending}; do
  timeout -k 2 100 python3 "$here/chat_at_terminal.py" "$scripted" "$scratch" "$case" || fail "a chat at a terminal: $case"
done

# lines INPUT [option...]: a chat whose turns are lines of a pipe.
lines() { printf '%b' "$1" | timeout -k 2 60 "$scripted" --model script --local all "${@:2}" >"$scratch/run.out" 2>"$scratch/run.err"; rc=$?; }
lines 'say **a**\\n<think>\n\n/undo\nturns\nlast without a line break'
[ $rc = 0 ] || fail "exit code $rc"
printf '**a**\n<think>\nturns\n25 bytes, sum 2390\n' | cmp - "$scratch/run.out" || fail "a pipe gets other bytes: $(cat "$scratch/run.out")"
lines 'say a\\0b\nturns\n'
printf 'a\0b\nsay a\0b|a\0b|turns\n' | cmp - "$scratch/run.out" || fail "an answer with a NUL is no turn: $(od -c "$scratch/run.out")"
lines 'say <think>hm</think>Four.\n'
[ "$(cat "$scratch/run.out")" = Four. ] || fail "thoughts are in a pipe: $(cat "$scratch/run.out")"
head -c 3000000 /dev/zero | tr '\0' a >"$scratch/long"
lines "$(head -c 100000 "$scratch/long")\n"
[ "$(cat "$scratch/run.out")" = "100000 bytes, sum 9700000" ] || fail "a long line is cut: $(cat "$scratch/run.out")"
"$scripted" --model script --local all <"$scratch/long" >"$scratch/run.out" 2>"$scratch/run.err"
[ "$(cat "$scratch/run.out")" = "3000000 bytes, sum 291000000" ] || fail "a line of 3 MB is cut: $(cat "$scratch/run.out")"
lines 'fail\nsay never\n'
[ $rc = 1 ] && [ ! -s "$scratch/run.out" ] || { cat "$scratch/run.out"; fail "a failed turn does not end a chat in a pipe: $rc"; }

# A real model: a session in a file continues with the same answers as without the break.
if [ -n "${SN_TEST_MODEL:-}" ]; then
  real=(timeout -k 2 100 "$bin/swarm" chat --model "$SN_TEST_MODEL" --local all --temperature 0 --max-tokens 12)
  head -c 32 /dev/urandom >"$scratch/key"
  chmod 600 "$scratch/key"
  printf 'My name is Ada.\nWhat is my name?\n' | "${real[@]}" >"$scratch/whole" 2>"$scratch/run.err" || fail "a chat ended with $?"
  printf 'My name is Ada.\n' | "${real[@]}" --save "$scratch/talk" --session-key "$scratch/key" >"$scratch/parts" 2>"$scratch/run.err" || fail "--save ended with $?"
  printf 'What is my name?\n' | "${real[@]}" --load "$scratch/talk" --session-key "$scratch/key" >>"$scratch/parts" 2>"$scratch/run.err" || fail "--load ended with $?"
  cmp "$scratch/whole" "$scratch/parts" || fail "a loaded chat answers otherwise"
  grep -q . "$scratch/parts" || fail "no answer"
else
  not_tested "a loaded chat of a real model (SN_TEST_MODEL names none)"
fi
exit 0
