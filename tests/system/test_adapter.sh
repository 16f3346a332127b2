#!/usr/bin/env bash
# What swarm tune trained over three processes is used: the text is another one, and the same here, over nodes, and when one of them
# dies while it is written.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$scratch/model
mkdir "$model"
cp "$fixtures/golden/llama/config.json" "$fixtures/golden/llama/model.safetensors" "$fixtures/tokenizer/smollm/tokenizer.json" "$model"
for i in 1 2 3 4; do echo '{"text": "7-3-9-7-3-9-7-3-9-7-3-9"}'; done >"$scratch/data.jsonl"
for i in 1 2 3 4; do printf '{"text": "7-3-9", "label": "up"}\n{"text": "9!3!7", "label": "down"}\n'; done >"$scratch/labels.jsonl"
tune=("$bin/swarm" tune --model "$model" --steps 12 --seq 24 --batch 2 --lr 0.05 --prompt-tokens 4)
generate=("$bin/swarm" generate --model "$model" --prompt 7-3 --ignore-end --json)

# text OPTION...: the ids that are written.
text() { succeeds "${generate[@]}" "$@"; query "$scratch/run.out" 'd["ids"]'; }

start_node a "$model" 0:1
wait_ready a
for name in b1 b2; do start_node $name "$model" 1:3 --join "${address[a]}"; done
start_node c "$model" 3:4 --join "${address[a]}"
wait_ready b1 b2 c
join=(--join "${address[a]}")

plain=$(text --local all --max-tokens 24)
for method in lora prompt deep-prompt; do
  succeeds "${tune[@]}" "${join[@]}" --data "$scratch/data.jsonl" --method $method --out "$scratch/$method"
  own=$(text --local all --max-tokens 24 --adapter "$scratch/$method")
  [ "$own" != "$plain" ] || fail "$method changes nothing"
  for how in "" --push "--local 0:2" "--audit 1 --audit-local"; do # shellcheck disable=SC2086
    [ "$(text "${join[@]}" $how --max-tokens 24 --adapter "$scratch/$method")" = "$own" ] || fail "$method $how: other tokens over nodes"
  done
done
[ "$(text "${join[@]}" --max-tokens 24)" = "$plain" ] || fail "an adapter stays behind in sessions without one"
lora=$(text --local all --max-tokens 200 --adapter "$scratch/lora")
query "$scratch/run.out" 'd["ids"][0:12:4]' >"$scratch/learned"
grep -q '\[15, ' "$scratch/learned" || fail "LoRA has not learned where the dashes stand"
[ "$(text --local all --max-tokens 200 --adapter "$scratch/lora/step-12")" = "$lora" ] || fail "its last checkpoint is another adapter"
grep -q 'does not say which weights' "$scratch/run.err" && fail "a checkpoint does not say which weights it was trained for"

# Saved, and gone on with over other cuts: with the same adapter, and with no other.
head -c 32 /dev/urandom >"$scratch/key" && chmod 600 "$scratch/key"
saved=(--session-key "$scratch/key")
whole=$(text --local all --max-tokens 20 --adapter "$scratch/deep-prompt")
first=$(text "${join[@]}" --max-tokens 9 --adapter "$scratch/deep-prompt" "${saved[@]}" --save "$scratch/saved")
run "$bin/swarm" generate --model "$model" --ignore-end --json --local all --max-tokens 11 --adapter "$scratch/deep-prompt" "${saved[@]}" --load "$scratch/saved"
[ $rc = 0 ] || fail "the session does not go on"
[ "$(query "$scratch/run.out" "$first + d['ids']")" = "$whole" ] || fail "a session that was saved goes on with another text"
for other in "" "--adapter $scratch/lora"; do # shellcheck disable=SC2086
  refuses 2 "saved with another --adapter" "$bin/swarm" generate --model "$model" --local all $other "${saved[@]}" --load "$scratch/saved"
done

# A node dies.
slow a
start client "${generate[@]}" "${join[@]}" --max-tokens 200 --adapter "$scratch/lora" --timeout 20
victim=""
until=$(($(now_ms) + 60000))
while [ -z "$victim" ] && [ "$(now_ms)" -lt "$until" ]; do
  run "$bin/swarm" status "${join[@]}" --json
  victim=$(query "$scratch/run.out" '(l := [n["name"] for n in d["nodes"] if n["name"] in ("b1", "b2") and n.get("sessions")]) and l[0] or ""' 2>/dev/null)
done
[ -n "$victim" ] || fail "nobody has a session"
kill_node "$victim"
kill "${pid[slow]}" && wait "${pid[slow]}" 2>/dev/null
unset "pid[slow]"
signal a CONT
wait_end client 60
[ $rc = 0 ] || fail "generate ended with $rc"
[ "$(query "$scratch/client.out" 'd["ids"]')" = "$lora" ] || fail "other tokens after the death of $victim"
query "$scratch/client.out" '" ".join(h["node"] for h in d["timings"]["hops"])' | grep -q "$victim@" && fail "it was over before $victim died"

# Published by nodes: chosen by name, over the nodes that hold it; what is broken is left out.
mkdir -p "$scratch/adapters/broken" "$scratch/others"
cp -r "$scratch/lora" "$scratch/adapters/dashes"
echo '{"peft_type": "LORA"}' >"$scratch/adapters/broken/adapter_config.json"
cp -r "$scratch/lora" "$scratch/adapters/foreign" # of the same shapes, but it says that it was trained for another model
echo "{\"weights\": \"$(printf '%064d' 7)\", \"model\": \"another\"}" >"$scratch/adapters/foreign/swarm.json"
refuses 2 'was trained for other weights \(another\)' "${generate[@]}" --local all --adapter "$scratch/adapters/foreign"
succeeds "${tune[@]}" "${join[@]}" --data "$scratch/data.jsonl" --method lora --seed 7 --out "$scratch/others/dashes"
start_node p "$model" 0:2 --join "${address[a]}" --adapters "$scratch/adapters" --tune-memory 0
start_node q "$model" 2:4 --join "${address[a]}" --adapters "$scratch/adapters" --tune-memory 0
wait_ready p q
grep -q 'left out.*broken' "$scratch/p.err" || fail "nothing is said about a broken adapter"
for how in "" --push; do # shellcheck disable=SC2086
  [ "$(text --join "${address[p]}" $how --max-tokens 200 --adapter name:dashes)" = "$lora" ] || fail "name:dashes $how is another one than the folder's"
  query "$scratch/run.out" '[h["node"].split("@")[0] for h in d["timings"]["hops"]] == ["p", "q"]' | grep -qx True || fail "other nodes are used than those that hold it"
done
[ "$(text --join "${address[p]}" --only p --only q --max-tokens 200 --adapter "$scratch/lora")" = "$lora" ] || fail "who has its folder does not use what is held"
succeeds "$bin/swarm" status --join "${address[p]}" --json
query "$scratch/run.out" 'sorted(n["name"] for n in d["nodes"] if [a["name"] for a in n.get("adapters", [])] == ["dashes"])' | grep -qx "\['p', 'q'\]" || fail "status does not show who publishes it"
hash=$(query "$scratch/run.out" '[n["adapters"][0]["hash"] for n in d["nodes"] if n["name"] == "p"][0]')
refuses 1 "no node publishes an adapter stripes" "${generate[@]}" --join "${address[p]}" --adapter name:stripes
refuses 2 "give --join" "${generate[@]}" --local all --adapter name:dashes
start_node r "$model" all --join "${address[a]}" --adapters "$scratch/others"
wait_ready r
refuses 2 "means different adapters" "${generate[@]}" --join "${address[r]}" --adapter name:dashes
[ "$(text --join "${address[r]}" --max-tokens 200 --adapter "name:dashes@${hash:0:12}")" = "$lora" ] || fail "its hash does not say which"
for name in p q r; do stop_node "$name"; done

# A classifier chooses labels and writes nothing; what does not fit is said.
succeeds "${tune[@]}" "${join[@]}" --data "$scratch/labels.jsonl" --method head --out "$scratch/head"
for where in "--local all" "${join[*]}"; do # shellcheck disable=SC2086
  succeeds "$bin/swarm" eval --model "$model" $where --adapter "$scratch/head" --data "$scratch/labels.jsonl" --json
  query "$scratch/run.out" 'd["right"] == 1 and d["examples"] == 8' | grep -qx True || fail "the classifier has not learned two texts"
done
refuses 2 "classifier.*swarm eval" "${generate[@]}" --local all --adapter "$scratch/head"
refuses 2 "another model" "$bin/swarm" generate --model "$fixtures/golden/qwen3" --local all --ids-file <(echo '[1, 2]') --adapter "$scratch/lora"
refuses 2 "cannot be read" "${generate[@]}" --local all --adapter "$scratch"
for name in a c; do stop_node "$name"; done
