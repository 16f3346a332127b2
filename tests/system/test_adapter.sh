#!/usr/bin/env bash
# An adapter that swarm tune trained over three processes is used: it changes the text, and the text is the same locally, over
# nodes, and when one of the nodes fails meanwhile.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
text_model
model=$scratch/model
for i in 1 2 3 4; do echo '{"text": "7-3-9-7-3-9-7-3-9-7-3-9"}'; done >"$scratch/data.jsonl"
for i in 1 2 3 4; do printf '{"text": "7-3-9", "label": "up"}\n{"text": "9!3!7", "label": "down"}\n'; done >"$scratch/labels.jsonl"
tune=("$bin/swarm" tune --model "$model" --steps 12 --seq 24 --batch 2 --lr 0.05 --virtual-tokens 4)
generate=("$bin/swarm" generate --model "$model" --prompt 7-3 --ignore-eos --json)

# text OPTION...: prints the generated ids.
text() { succeeds "${generate[@]}" "$@"; query "$scratch/run.out" 'd["ids"]'; }

start_node a "$model" 0:1
wait_ready a
for name in b1 b2; do start_node $name "$model" 1:3 --join "${address[a]}" --metrics 0; done
start_node c "$model" 3:4 --join "${address[a]}"
wait_ready b1 b2 c
join=(--join "${address[a]}")

plain=$(text --local all --max-tokens 24)
for method in lora prompt deep-prompt; do
  succeeds "${tune[@]}" "${join[@]}" --data "$scratch/data.jsonl" --method $method --out "$scratch/$method"
  own=$(text --local all --max-tokens 24 --adapter "$scratch/$method")
  [ "$own" != "$plain" ] || fail "$method changes nothing"
  for mode in "" --push "--local 0:2" "--audit 1 --audit-local"; do # shellcheck disable=SC2086
    [ "$(text "${join[@]}" $mode --max-tokens 24 --adapter "$scratch/$method")" = "$own" ] || fail "$method $mode: tokens over nodes differ"
  done
done
[ "$(text "${join[@]}" --max-tokens 24)" = "$plain" ] || fail "an adapter changes later sessions without adapter"
lora=$(text --local all --max-tokens 200 --adapter "$scratch/lora")
query "$scratch/run.out" 'd["ids"][0:12:4]' >"$scratch/learned"
grep -q '\[15, ' "$scratch/learned" || fail "LoRA has not learned the dashes"
[ "$(text --local all --max-tokens 200 --adapter "$scratch/lora/step-12")" = "$lora" ] || fail "the last checkpoint holds another adapter"
grep -q 'does not say which weights' "$scratch/run.err" && fail "a checkpoint does not name its base weights"

# A saved session resumes over other cuts: with the same adapter, and with no other one.
head -c 32 /dev/urandom >"$scratch/key" && chmod 600 "$scratch/key"
saved=(--session-key "$scratch/key")
whole=$(text --local all --max-tokens 20 --adapter "$scratch/deep-prompt")
first=$(text "${join[@]}" --max-tokens 9 --adapter "$scratch/deep-prompt" "${saved[@]}" --save "$scratch/saved")
run "$bin/swarm" generate --model "$model" --ignore-eos --json --local all --max-tokens 11 --adapter "$scratch/deep-prompt" "${saved[@]}" --load "$scratch/saved"
[ $rc = 0 ] || fail "the session does not resume"
[ "$(query "$scratch/run.out" "$first + d['ids']")" = "$whole" ] || fail "the text of a resumed session differs"
for other in "" "--adapter $scratch/lora"; do # shellcheck disable=SC2086
  refuses 2 "saved with another --adapter" "$bin/swarm" generate --model "$model" --local all $other "${saved[@]}" --load "$scratch/saved"
done

# A node fails. The link makes each step take some milliseconds of waiting, so that the text lasts two seconds on any machine.
declare -A steps
for name in b1 b2; do steps[$name]=$(idle_steps $name); done
start_node slow "$model" 0:1 --join "${address[a]}" --emulate-link 1gbit,20ms
wait_ready slow
start client "${generate[@]}" --join "${address[slow]}" --deny a --max-tokens 200 --adapter "$scratch/lora" --timeout 20
failing=""
while [ -z "$failing" ] && kill -0 "${pid[client]}" 2>/dev/null; do
  for name in b1 b2; do [ "$(metric $name steps_total)" = "${steps[$name]}" ] || failing=$name; done
done
[ -n "$failing" ] || fail "no node has a session"
kill_node "$failing"
wait_end client 60
[ $rc = 0 ] || fail "generate ended with $rc"
[ "$(query "$scratch/client.out" 'd["ids"]')" = "$lora" ] || fail "tokens differ after the failure of $failing"
query "$scratch/client.out" '" ".join(h["node"] for h in d["timings"]["hops"])' | grep -q "$failing@" && fail "generate ended before $failing failed"
stop_node slow

# Published by nodes: selected by name, over the nodes that hold it; a broken adapter is skipped.
mkdir -p "$scratch/adapters/broken" "$scratch/others"
cp -r "$scratch/lora" "$scratch/adapters/dashes"
echo '{"peft_type": "LORA"}' >"$scratch/adapters/broken/adapter_config.json"
cp -r "$scratch/lora" "$scratch/adapters/foreign" # the same shapes, but the base weights are those of another model
python3 - "$scratch/adapters/foreign/swarm.json" <<'END'
import json, sys
mark = json.load(open(sys.argv[1]))
mark["model"] = "another"
mark["blocks"][0], mark["blocks"][1], mark["blocks"][3] = None, "7" * 64, "7" * 64  # of the first nothing is known
json.dump(mark, open(sys.argv[1], "w"))
END
refuses 2 'was trained for other weights \(another\): block 1 ' "${generate[@]}" --local all --adapter "$scratch/adapters/foreign"
cp -r "$scratch/lora" "$scratch/other_head" # the blocks are those of this model, the head is another one
sed -i 's/"client": "[0-9a-f]*"/"client": "'"$(printf '7%.0s' {1..64})"'"/' "$scratch/other_head/swarm.json"
refuses 2 'was trained for other weights .*: the embedding, the last norm or the LM head of this model differ' "${generate[@]}" --local all --adapter "$scratch/other_head"
succeeds "${tune[@]}" "${join[@]}" --data "$scratch/data.jsonl" --method lora --seed 7 --out "$scratch/others/dashes"
start_node p "$model" 0:2 --join "${address[a]}" --adapters "$scratch/adapters" --tune-memory 0
start_node q "$model" 2:4 --join "${address[a]}" --adapters "$scratch/adapters" --tune-memory 0
wait_ready p q
grep -q 'adapter skipped.*broken' "$scratch/p.err" || fail "a broken adapter is not reported"
for node in p.1 q.3; do
  grep -q "adapter skipped.*foreign.*block ${node#*.} of this model differs" "$scratch/${node%.*}.err" || fail "a node publishes an adapter of other weights than its own"
done
for mode in "" --push; do # shellcheck disable=SC2086
  [ "$(text --join "${address[p]}" $mode --max-tokens 200 --adapter name:dashes)" = "$lora" ] || fail "name:dashes $mode differs from the folder's adapter"
  query "$scratch/run.out" '[h["node"].split("@")[0] for h in d["timings"]["hops"]] == ["p", "q"]' | grep -qx True || fail "nodes without the adapter are used"
done
[ "$(text --join "${address[p]}" --only p --only q --max-tokens 200 --adapter "$scratch/lora")" = "$lora" ] || fail "a client with the folder does not use the published adapter"
# publish NODE NAMES: status shows, by way of this node, that these nodes publish it.
publish() {
  succeeds "$bin/swarm" status --join "${address[$1]}" --json
  query "$scratch/run.out" 'sorted(n["name"] for n in d["nodes"] if [a["name"] for a in n.get("adapters", [])] == ["dashes"])' | grep -qxF "$2"
}
wait_until 60 publish p "['p', 'q']"
hash=$(query "$scratch/run.out" '[n["adapters"][0]["hash"] for n in d["nodes"] if n["name"] == "p"][0]')
refuses 1 "no node publishes an adapter stripes" "${generate[@]}" --join "${address[p]}" --adapter name:stripes
refuses 2 "give --join" "${generate[@]}" --local all --adapter name:dashes
start_node r "$model" all --join "${address[a]}" --adapters "$scratch/others"
wait_ready r
wait_until 60 publish r "['p', 'q', 'r']"
refuses 2 "means different adapters" "${generate[@]}" --join "${address[r]}" --adapter name:dashes
[ "$(text --join "${address[r]}" --max-tokens 200 --adapter "name:dashes@${hash:0:12}")" = "$lora" ] || fail "the hash does not select it"
for name in p q r; do stop_node "$name"; done

# One bit of one matrix differs, with all shapes and norms the same: neither the client, nor over nodes, nor a resumed training
# uses the adapter.
changed=$scratch/changed
cp -r "$model" "$changed"
python3 - "$changed/model.safetensors" model.layers.2.mlp.up_proj.weight <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as f:
    size = struct.unpack("<Q", f.read(8))[0]
    at = 8 + size + json.loads(f.read(size))[sys.argv[2]]["data_offsets"][0]
    f.seek(at)
    byte = f.read(1)[0]
    f.seek(at)
    f.write(bytes([byte ^ 1]))
END
start_node changed "$changed" all
wait_ready changed
of_changed=("${generate[@]}" --model "$changed" --max-tokens 2)
for method in lora prompt deep-prompt; do
  refuses 2 'block 2 of this model differs' "${of_changed[@]}" --local all --adapter "$scratch/$method"
  refuses 2 'block 2 of this model differs' "${of_changed[@]}" --local 1:3 --join "${address[changed]}" --adapter "$scratch/$method"
  refuses 2 'block 2 of this model differs' "${of_changed[@]}" --join "${address[changed]}" --adapter "$scratch/$method"
done
refuses 1 'no node serves blocks 0:4 .*other weights' "${generate[@]}" --join "${address[changed]}" --adapter "$scratch/lora"
cp -r "$scratch/lora" "$scratch/resumed"
for where in "--local all" "--join ${address[changed]}"; do # shellcheck disable=SC2086
  refuses 2 'block 2 of this model differs' "${tune[@]}" $where --model "$changed" --data "$scratch/data.jsonl" --method lora --resume "$scratch/resumed"
done
rm "$scratch/resumed/swarm.json" # its owner insists: then it is like an adapter of another program
succeeds "${of_changed[@]}" --local all --adapter "$scratch/resumed"
grep -q 'does not say which weights' "$scratch/run.err" || fail "an adapter without base weights is used without a word"
stop_node changed

# A classifier selects labels and generates no text; unsuitable commands are refused.
succeeds "${tune[@]}" "${join[@]}" --data "$scratch/labels.jsonl" --method head --out "$scratch/head"
for where in "--local all" "${join[*]}"; do # shellcheck disable=SC2086
  succeeds "$bin/swarm" eval --model "$model" $where --adapter "$scratch/head" --data "$scratch/labels.jsonl" --json
  query "$scratch/run.out" 'd["accuracy"] == 1 and d["examples"] == 8' | grep -qx True || fail "the classifier has not learned two texts"
done
refuses 2 "classifier.*swarm eval" "${generate[@]}" --local all --adapter "$scratch/head"
refuses 2 "another model" "$bin/swarm" generate --model "$fixtures/golden/qwen3" --local all --ids-file <(echo '[1, 2]') --adapter "$scratch/lora"
refuses 2 "has no adapter_config.json" "${generate[@]}" --local all --adapter "$scratch"
for name in a c; do stop_node "$name"; done
