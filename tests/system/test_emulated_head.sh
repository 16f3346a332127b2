#!/usr/bin/env bash
# --device of the programs that read the LM head, over emulated accelerators: the same text and probabilities as with the CPU,
# over a node, with local blocks and in a server; an audit that is right about exact nodes; a device without room. Without the
# option, and with --device cpu, no driver of a GPU is loaded.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
emulate
text_model
model=$scratch/model
generate=("$bin/swarm" generate --model "$model" --ignore-eos --json --prompt 7-3 --max-tokens 12)

start_node plain "$model" all --device cpu
wait_ready plain
at=(--join "${address[plain]}")
succeeds "${generate[@]}" "${at[@]}"
whole=$(query "$scratch/run.out" 'd["ids"]')
succeeds "$bin/swarm" eval --model "$model" "${at[@]}" --text "7-3 7-3 7-3 7-3 7-3" --ctx 8 --json
nll=$(query "$scratch/run.out" 'd["nll"]')

for device in cuda:0 xpu:0; do
  for blocks in "${at[*]}" "--local all" "${at[*]} --local 1:3"; do # shellcheck disable=SC2086
    succeeds "${generate[@]}" --device $device $blocks
    [ "$(query "$scratch/run.out" 'd["ids"]')" = "$whole" ] || fail "--device $device $blocks gives another text"
  done
  succeeds "$bin/swarm" eval --model "$model" "${at[@]}" --text "7-3 7-3 7-3 7-3 7-3" --ctx 8 --json --device $device
  query "$scratch/run.out" "abs(d['nll'] - $nll) < 3e-2" | grep -qx True || fail "--device $device: $(cat "$scratch/run.out"), not $nll"

  # The node is exact: only what a CPU recomputes can be compared with it.
  succeeds "${generate[@]}" --device $device "${at[@]}" --audit 1 --audit-local
  query "$scratch/run.out" 'd["audit"]["checked"] > 0 and d["audit"]["nodes_banned"] == 0' | grep -qx True ||
    fail "--device $device: an honest node was found wrong: $(query "$scratch/run.out" 'd["audit"]')"

  bench=("$bin/swarm" bench --model "$model" --device $device --prompt-tokens 6 --new-tokens 3 --repeat 1 --warmup 0 --json)
  for blocks in "${at[*]} --sessions 3" "--local all"; do # shellcheck disable=SC2086
    succeeds "${bench[@]}" $blocks
    query "$scratch/run.out" "d['device'] == '$device' and d['rows'][0]['decode_tok_s'] > 0" | grep -qx True || fail "bench: $(cat "$scratch/run.out")"
  done
done

# A server of several sessions.
start server "$bin/swarm" serve --model "$model" "${at[@]}" --device cuda:0 --listen 127.0.0.1:0 --max-sessions 3
wait_until 60 grep -q '^ready: ' "$scratch/server.out" || fail "the server does not start: $(cat "$scratch/server.err")"
url=$(sed -n 's/^ready: .* url=\([^ ]*\).*/\1/p' "$scratch/server.out")
python3 - "$url" <<'END' || fail "the server does not answer: $(cat "$scratch/server.err")"
import json, sys, threading, urllib.request
def ask(out):
    body = json.dumps({"prompt": "7-3", "max_tokens": 8, "temperature": 0, "logprobs": 1}).encode()
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"})
    out.append(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"])
texts = []
threads = [threading.Thread(target=ask, args=(texts,)) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
assert len(texts) == 3 and len(set(texts)) == 1, texts
END
signal server TERM
wait_end server 60

# No room: nothing is generated, and a sentence says what to do.
CUDA_STAND_IN_MEMORY=65536 run "${generate[@]}" "${at[@]}" --device cuda:0
[ $rc = 3 ] && grep -q 'embedding and LM head: cuda:0 has .* left, and .* are needed: give --device cpu' "$scratch/run.err" ||
  fail "without room generate ends with $rc: $(cat "$scratch/run.err")"

# What does not name a GPU does not wake it.
driver() { LD_DEBUG=files "${generate[@]}" "${at[@]}" "$@" 2>&1 >/dev/null | grep -c 'libze_test_driver' || :; }
[ "$(driver --device xpu:0)" -gt 0 ] || fail "this test does not see that a driver is loaded"
for options in "" "--device cpu"; do # shellcheck disable=SC2086
  [ "$(driver $options)" = 0 ] || fail "generate $options loads a driver"
done
stop_node plain
