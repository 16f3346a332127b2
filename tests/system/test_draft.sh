#!/usr/bin/env bash
# What is guessed ahead is the text that is not, in every command that writes one; what goes wrong with guessing gets a sentence.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
llama=$fixtures/golden/llama
golden_ids llama "$scratch/ids"

# Over nodes, greedy and by chance, from node to node, and with fewer guesses; passes are saved.
start_three "$llama"
for choice in "--temperature 0" "--temperature 0.9 --top-k 30 --top-p 0.95 --repeat-penalty 1.1 --seed 4"; do
  common=(--model "$llama" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 50 --ignore-end --json $choice)
  succeeds "$bin/swarm" generate "${common[@]}"
  expected=$(query "$scratch/run.out" 'd["ids"]')
  for how in "--draft ngram" "--draft ngram --push" "--draft-model $llama" "--draft-model $llama --push --draft-tokens 3" \
    "--draft-model $fixtures/golden/mistral"; do
    succeeds "$bin/swarm" generate "${common[@]}" $how
    [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$choice $how: $(cat "$scratch/run.out")"
    case $how in
      *"$llama"*)
        query "$scratch/run.out" 'all([d["timings"]["guessed_right"] == d["timings"]["guessed_tokens"],
          d["timings"]["decode_steps"] < 25, d["timings"]["decode_tokens"] == 49])' | grep -qx True ||
          fail "a model does not guess what it would say itself: $(cat "$scratch/run.out")"
        ;;
    esac
  done
done

# The untuned model guesses for the tuned one.
for adapter in lora prompt; do
  common=(--model "$llama" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 50 --ignore-end --json --adapter "$fixtures/peft/$adapter/end")
  succeeds "$bin/swarm" generate "${common[@]}"
  expected=$(query "$scratch/run.out" 'd["ids"]')
  succeeds "$bin/swarm" generate "${common[@]}" --draft-model "$llama" --push
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$adapter: guesses change a tuned model's text: $(cat "$scratch/run.out")"
  query "$scratch/run.out" '0 < d["timings"]["guessed_right"] < d["timings"]["guessed_tokens"]' | grep -qx True ||
    fail "$adapter: the untuned model thinks quite alike, or not at all: $(cat "$scratch/run.out")"
done

# Hidden states that are rounded on the wire are rounded alike in every step: a text of theirs stays itself, too.
common=(--model "$llama" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 50 --ignore-end --json --wire q8)
succeeds "$bin/swarm" generate "${common[@]}"
expected=$(query "$scratch/run.out" 'd["ids"]')
for how in "" --push; do
  succeeds "$bin/swarm" generate "${common[@]}" --draft-model "$llama" $how
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "over a lossy wire $how guesses change the text: $(cat "$scratch/run.out")"
done

# A session that is saved holds what was said, not what was guessed.
head -c 32 /dev/urandom >"$scratch/key"
chmod 600 "$scratch/key"
common=(--model "$llama" --join "${address[a]}" --ignore-end --json --session-key "$scratch/key")
succeeds "$bin/swarm" generate "${common[@]}" --ids-file "$scratch/ids" --max-tokens 17 --draft-model "$fixtures/golden/mistral" --save "$scratch/s"
first=$(query "$scratch/run.out" 'd["ids"]')
succeeds "$bin/swarm" generate "${common[@]}" --load "$scratch/s" --max-tokens 20 --draft ngram
whole=$(query "$scratch/run.out" "$first + d['ids']")
succeeds "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --max-tokens 37 --ignore-end --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$whole" ] || fail "after a file the text goes on otherwise"
stop_three

# Text of a real model, and a chat of two turns.
if [ -n "${SN_TEST_MODEL:-}" ]; then
  for how in "" "--draft ngram" "--draft-model $SN_TEST_MODEL"; do
    succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all $how --max-tokens 30 --stop " k" --prompt "a b c d e f g h i j k a b c d e f"
    cp "$scratch/run.out" "$scratch/text"
    printf 'Count to ten in words.\nAgain, please.\n' >"$scratch/turns"
    "$bin/swarm" chat --model "$SN_TEST_MODEL" --local all $how --max-tokens 30 --temperature 0.7 --seed 3 <"$scratch/turns" \
      >>"$scratch/text" 2>"$scratch/chat.err" || fail "chat $how: $(cat "$scratch/chat.err")"
    [ -f "$scratch/expected" ] || cp "$scratch/text" "$scratch/expected"
    cmp "$scratch/text" "$scratch/expected" || fail "with $how the text is another one"
  done
  refuses 2 "whether a draft has the model's tokens" "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all --prompt x --draft-model "$llama"
fi

refuses 2 "it is ngram" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft oracle
refuses 2 "not both" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft ngram --draft-model "$llama"
refuses 2 "no-such" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft-model "$scratch/no-such"
refuses 2 "draft-tokens" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft ngram --draft-tokens 64
exit 0
