#!/usr/bin/env bash
# Three nodes give the same bits as one program: hidden states, logits, tokens; with and without --push.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$here/hardened.sh"

compare() { # compare MODEL IDS: nodes a, b and c must be running
  local model=$1 ids=$2 join="--join ${address[a]}"
  succeeds "$bin/swarm" forward --model "$model" --local all --ids-file "$ids" --force --out "$scratch/local" --every-block
  succeeds "$bin/swarm" forward --model "$model" $join --ids-file "$ids" --force --out "$scratch/nodes" --every-block
  cmp "$scratch/local" "$scratch/nodes" || fail "$model: hidden states or logits over nodes differ from local ones"
  succeeds "$bin/swarm" forward --model "$model" --local all --ids-file "$ids" --force --out "$scratch/local"
  succeeds "$bin/swarm" forward --model "$model" $join --push --ids-file "$ids" --force --out "$scratch/pushed"
  cmp "$scratch/local" "$scratch/pushed" || fail "$model: logits over nodes that push differ from local ones"
  local mode n=0 tokens
  for mode in "--local all" "$join" "$join --push" "$join --local 0:2"; do
    succeeds "$bin/swarm" generate --model "$model" $mode --ids-file "$ids" --max-tokens 40 --ignore-eos --json
    tokens=$(query "$scratch/run.out" 'd["ids"]')
    [ $((n++)) = 0 ] && expected=$tokens
    [ "$tokens" = "$expected" ] || fail "$model $mode: $tokens instead of $expected"
  done
}

for name in llama qwen2 qwen3 mistral; do
  golden_ids "$name" "$scratch/ids"
  start_three "$fixtures/golden/$name"
  compare "$fixtures/golden/$name" "$scratch/ids"
  stop_three
done

if is_sanitized; then
  : # a real model's arithmetic takes minutes there, and has no thread or message that the small ones have not; test_serve has one
elif [ -n "${SN_TEST_MODEL:-}" ]; then
  start_node a "$SN_TEST_MODEL" 0:10
  wait_ready a
  start_node b "$SN_TEST_MODEL" 10:20 --join "${address[a]}"
  start_node c "$SN_TEST_MODEL" 20:30 --join "${address[a]}"
  wait_ready b c
  golden_ids llama "$scratch/ids"
  compare "$SN_TEST_MODEL" "$scratch/ids"
  for mode in "--local all" "--join ${address[b]}"; do
    succeeds "$bin/swarm" generate --model "$SN_TEST_MODEL" $mode --prompt "The capital of France is" --max-tokens 12
    cp "$scratch/run.out" "$scratch/text.${mode%% *}"
  done
  cmp "$scratch/text.--local" "$scratch/text.--join" || fail "the text over nodes differs from the local one"
  grep -q Paris "$scratch/text.--join" || fail "the model does not know the capital of France"
  stop_three
else
  not_tested "a real model (SN_TEST_MODEL names none)"
fi
