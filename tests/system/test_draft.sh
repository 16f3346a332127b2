#!/usr/bin/env bash
# Text with draft tokens equals text without them in every command that generates text; invalid draft options are refused.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
llama=$fixtures/golden/llama
golden_ids llama "$scratch/ids"

# Over nodes, greedy and sampled, with --push, and with fewer draft tokens; forward passes are saved.
start_three "$llama"
for choice in "--temperature 0" "--temperature 0.9 --top-k 30 --top-p 0.95 --repeat-penalty 1.1 --seed 4"; do
  common=(--model "$llama" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 50 --ignore-eos --json $choice)
  succeeds "$bin/swarm" generate "${common[@]}"
  expected=$(query "$scratch/run.out" 'd["ids"]')
  for mode in "--draft ngram" "--draft ngram --push" "--draft-model $llama" "--draft-model $llama --push --draft-tokens 3" \
    "--draft-model $fixtures/golden/mistral"; do
    succeeds "$bin/swarm" generate "${common[@]}" $mode
    [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$choice $mode: $(cat "$scratch/run.out")"
    case $mode in
      *"$llama"*)
        query "$scratch/run.out" 'all([d["timings"]["accepted"] == d["timings"]["drafted"],
          d["timings"]["decode_steps"] - d["timings"]["ahead"] < 25, d["timings"]["decode_tokens"] == 49,
          d["timings"]["judged"] == d["timings"]["accepted"], d["timings"]["laps_saved"] < 49])' | grep -qx True ||
          fail "a model does not draft its own text: $(cat "$scratch/run.out")"
        ;;
    esac
  done
done

# The model without adapter drafts for the model with adapter.
for adapter in lora prompt; do
  common=(--model "$llama" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 50 --ignore-eos --json --adapter "$fixtures/peft/$adapter/end")
  succeeds "$bin/swarm" generate "${common[@]}"
  expected=$(query "$scratch/run.out" 'd["ids"]')
  succeeds "$bin/swarm" generate "${common[@]}" --draft-model "$llama" --push
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$adapter: drafts change the text with an adapter: $(cat "$scratch/run.out")"
  # Of the prompt's text so few drafts are right that drafting rests at them.
  query "$scratch/run.out" 'd["timings"]["accepted"] < d["timings"]["drafted"] and ("'$adapter'" == "prompt" or d["timings"]["accepted"] > 0)' |
    grep -qx True || fail "$adapter: drafts without adapter are all accepted, or all rejected: $(cat "$scratch/run.out")"
done

# Hidden states that are rounded on the wire are rounded equally in every step: the text does not change either.
common=(--model "$llama" --join "${address[a]}" --ids-file "$scratch/ids" --max-tokens 50 --ignore-eos --json --wire-dtype q8)
succeeds "$bin/swarm" generate "${common[@]}"
expected=$(query "$scratch/run.out" 'd["ids"]')
for mode in "" --push; do
  succeeds "$bin/swarm" generate "${common[@]}" --draft-model "$llama" $mode
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "over a lossy wire $mode drafts change the text: $(cat "$scratch/run.out")"
done

# A saved session holds the text, not the draft tokens.
head -c 32 /dev/urandom >"$scratch/key"
chmod 600 "$scratch/key"
common=(--model "$llama" --join "${address[a]}" --ignore-eos --json --session-key "$scratch/key")
succeeds "$bin/swarm" generate "${common[@]}" --ids-file "$scratch/ids" --max-tokens 17 --draft-model "$fixtures/golden/mistral" --save "$scratch/s"
first=$(query "$scratch/run.out" 'd["ids"]')
succeeds "$bin/swarm" generate "${common[@]}" --load "$scratch/s" --max-tokens 20 --draft ngram
whole=$(query "$scratch/run.out" "$first + d['ids']")
succeeds "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --max-tokens 37 --ignore-eos --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$whole" ] || fail "the text of a resumed session differs"
stop_three

# The model's own block drafts by default over nodes, where the files have it; tokens of a random model are drafted in vain.
for family in qwen3_5_mtp glm4_moe_mtp; do
  model=$fixtures/golden/$family
  golden_ids "$family" "$scratch/next"
  start_node "$family" "$model" all
  wait_ready "$family"
  common=(--model "$model" --ids-file "$scratch/next" --max-tokens 40 --ignore-eos --json)
  succeeds "$bin/swarm" generate "${common[@]}" --join "${address[$family]}" --draft off
  expected=$(query "$scratch/run.out" 'd["ids"]')
  for mode in "--join ${address[$family]}" "--join ${address[$family]} --draft mtp --temperature 0" "--local all --draft mtp" "--local all"; do
    succeeds "$bin/swarm" generate "${common[@]}" $mode
    [ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "$family $mode: drafts change the text: $(cat "$scratch/run.out")"
    drafted=$(query "$scratch/run.out" 'd["timings"].get("drafted", 0) > 0')
    [ "$drafted" = "$([ "$mode" = "--local all" ] && echo False || echo True)" ] || fail "$family $mode: drafts: $drafted"
  done
  stop_node "$family"
done
refuses 2 "no block that predicts a further token" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft mtp

# Text of a real model, and a chat of two turns.
if [ -n "${SN_TEST_MODEL:-}" ]; then
  for mode in "" "--draft ngram" "--draft-model $SN_TEST_MODEL"; do
    succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all $mode --max-tokens 30 --stop " k" --prompt "a b c d e f g h i j k a b c d e f"
    cp "$scratch/run.out" "$scratch/text"
    printf 'Count to ten in words.\nAgain, please.\n' >"$scratch/turns"
    "$bin/swarm" chat --model "$SN_TEST_MODEL" --local all $mode --max-tokens 30 --temperature 0.7 --seed 3 <"$scratch/turns" \
      >>"$scratch/text" 2>"$scratch/chat.err" || fail "chat $mode: $(cat "$scratch/chat.err")"
    [ -f "$scratch/expected" ] || cp "$scratch/text" "$scratch/expected"
    cmp "$scratch/text" "$scratch/expected" || fail "with $mode the text differs"
  done
  refuses 2 "the draft model's tokenizer, to compare" "$bin/swarm" generate --model "$SN_TEST_MODEL" --local all --prompt x --draft-model "$llama"
else
  not_tested "text of a real model (SN_TEST_MODEL names none)"
fi

refuses 2 "must be auto, off, ngram or mtp" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft oracle
refuses 2 "not both" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft ngram --draft-model "$llama"
refuses 2 "no-such" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft-model "$scratch/no-such"
refuses 2 "draft-tokens" "$bin/swarm" generate --model "$llama" --local all --ids-file "$scratch/ids" --draft ngram --draft-tokens 64
exit 0
