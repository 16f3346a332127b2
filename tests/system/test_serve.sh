#!/usr/bin/env bash
# swarm serve: the same text as swarm generate, for one client and for many at once; clients that leave; a queue; keys, names, origins;
# a node killed in the middle of an answer; SIGTERM. The bodies of requests and replies have tests of their own.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
model=$SN_TEST_MODEL
# serve NAME [option...]: starts a server at a free port; url is its address.
serve() {
  local name=$1
  shift
  start "$name" "$bin/swarm" serve --model "$model" --served-model-name tiny --listen 127.0.0.1:0 --log-level info "$@"
  wait_ready "$name"
  url=http://${address[$name]}
}
client() { timeout -k 2 400 python3 "$here/serve_client.py" "$@" || fail "$1"; }
generate() { succeeds "$bin/swarm" generate --model "$model" --join "${address[a]}" --json "$@"; query "$scratch/run.out" 'd["text"]'; }
refused() { refuses 2 "$1" "$bin/swarm" serve --model "$model" "${@:2}"; }

# -- what is refused at once
refused '^swarm serve: no node is given' --listen 127.0.0.1:0
refused 'give --api-key-file FILE' --local all --listen 0.0.0.0:0
refused 'belong together' --local all --tls-cert x
refused 'is no origin' --local all --cors '*'
printf 'short\n' >"$scratch/short" && chmod 600 "$scratch/short"
start_node a "$model" all --client-sessions 0 --device cpu
wait_ready a
refused 'key 1 has 5 characters' --join "${address[a]}" --api-key-file "$scratch/short"

# -- one text, over four sessions
serve server --join "${address[a]}" --max-sessions 4
greedy=$(generate --prompt "The capital of France is" --max-tokens 16)
sampled=$(generate --prompt "Once upon a time" --max-tokens 16 --temperature 0.9 --top-p 0.9 --seed 7)
client same_text "$url" "$(python3 -c 'import json, sys; print(json.dumps([
  {"text": sys.argv[1], "request": {"prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}},
  {"text": sys.argv[2], "request": {"prompt": "Once upon a time", "max_tokens": 16, "temperature": 0.9, "top_p": 0.9, "seed": 7}}]))' "$greedy" "$sampled")"
client prefixes "$url"
client agents "$url"
said=$(echo "What is the capital of France?" | "$bin/swarm" chat --model "$model" --join "${address[a]}" --seed 5 2>"$scratch/chat.log") ||
  fail "swarm chat: $(cat "$scratch/chat.log")"
client defaults "$url" "$said" 5
client together "$url"
client echo "$url"
client view "$url"
stop_node server

serve short --join "${address[a]}" --max-sessions 1 --ctx 96
client limits "$url"
client choices "$url" 65 # one that runs, 64 that wait
stop_node short

# -- keys, names, origins, sizes
printf '# keys\n\nthe-first-key-of-the-file\r\nthe-second-key-of-the-file  \n' >"$scratch/keys" && chmod 600 "$scratch/keys"
serve closed --join "${address[a]}" --api-key-file "$scratch/keys" --host served.example --cors https://app.example
client access "$url" the-first-key-of-the-file
stop_node closed

# -- HTTPS
if command -v openssl >/dev/null && command -v curl >/dev/null; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 \
    -keyout "$scratch/key.pem" -out "$scratch/cert.pem" 2>/dev/null || fail "openssl makes no certificate"
  refused 'see whether --tls-cert and --tls-key' --join "${address[a]}" --listen 127.0.0.1:0 --tls-cert "$scratch/keys" --tls-key "$scratch/keys"
  serve tls --join "${address[a]}" --tls-cert "$scratch/cert.pem" --tls-key "$scratch/key.pem"
  succeeds curl -sS --max-time 60 --cacert "$scratch/cert.pem" "https://${address[tls]}/v1/completions" \
    -d '{"model": "tiny", "prompt": "x", "max_tokens": 2, "stream": true}'
  grep -q '^data: \[DONE\]' "$scratch/run.out" || fail "no stream over HTTPS: $(cat "$scratch/run.out")"
  stop_node tls
else
  not_tested "HTTPS (there is no openssl or no curl)"
fi

# -- clients that leave, a full queue, SIGTERM, over a node that takes its time
slow a
serve small --join "${address[a]}" --max-sessions 1 --queue 1 --drain-timeout 300 --timeout 120
client leaving "$url"
client ending "$url" "${pid[a]}" "${pid[slow]}" "$scratch/answering" "$scratch/draining" &
asking=$! pid[asking]=$!
wait_file answering
signal small TERM
wait_file draining
signal a CONT
wait "${pid[slow]}" 2>/dev/null; unset "pid[slow]"
wait "$asking"; rc=$?; unset "pid[asking]"
[ $rc = 0 ] || fail "SIGTERM in the middle of an answer"
wait_end small 60
[ $rc = 0 ] || fail "after SIGTERM the server ended with exit code $rc"

# -- a node is killed in the middle of an answer
expected=$(generate --prompt "Once upon a time" --max-tokens 100 --ignore-eos)
start_node b "$model" all --device cpu --join "${address[a]}"
wait_ready b
serve server --join "${address[a]}" --join "${address[b]}" --max-sessions 2 --emulate-link 1gbit,50ms # the answer takes seconds
client steady "$url" "$expected" "$scratch/begun" "$scratch/killed" &
asking=$! pid[asking]=$!
wait_file begun
kill_node "$(cat "$scratch/begun")"
touch "$scratch/killed"
wait "$asking"; rc=$?; unset "pid[asking]"
[ $rc = 0 ] || fail "a node was killed in the middle of an answer"
stop_node server

# -- a node of its own ends with the server, however that ends
serve own --local all --device cpu --max-sessions 2
child=$(cat "/proc/${pid[own]}/task/${pid[own]}/children")
[ -n "$child" ] || fail "--local all starts no node"
client view "$url"
kill_node own
for ((i = 0; i < 3000; i++)); do kill -0 $child 2>/dev/null || break; pause 0.02; done
kill -0 $child 2>/dev/null && fail "the node outlives a server that was killed"
serve own --local all --device cpu --max-sessions 2
child=$(cat "/proc/${pid[own]}/task/${pid[own]}/children")
stop_node own
kill -0 $child 2>/dev/null && fail "the node outlives its server"
exit 0
