#!/usr/bin/env bash
# A server over three nodes is ended and started again: it has the key that it had, and the nodes what they kept of its conversation,
# which is not computed again; another user of it is told nothing of that. A second server beside it has a key of its own; with a file of known prefixes that is damaged, or
# that others may read, the conversation is computed again.
. "$(dirname "$0")/lib.sh"
text_model
start_node a "$scratch/model" 0:1 --device cpu
wait_ready a
start_node b "$scratch/model" 1:2 --device cpu --join "${address[a]}"
start_node c "$scratch/model" 2:4 --device cpu --join "${address[a]}"
wait_ready b
wait_ready c

printf 'key-of-the-first-user\nkey-of-the-second-user\n' >"$scratch/keys"
chmod 600 "$scratch/keys"
start_server() { # NAME
  start "$1" "$bin/swarm" serve --model "$scratch/model" --served-model-name tiny --join "${address[a]}" --listen 127.0.0.1:0 \
    --api-key-file "$scratch/keys"
  wait_ready "$1"
}
end_server() { signal "$1" TERM; wait_end "$1" 60; unset "address[$1]"; }
# ask SERVER [KEY]: prints the cached tokens, and the text into the file "text".
ask() {
  timeout -k 2 100 python3 - "http://${address[$1]}/v1/completions" "$scratch/text" "${2:-key-of-the-first-user}" <<'P' || fail "a request"
import json, sys, urllib.request
body = {"model": "tiny", "prompt": "a b c d e f g h " * 12, "max_tokens": 8, "temperature": 0}
request = urllib.request.Request(sys.argv[1], json.dumps(body).encode(), {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[3]})
reply = json.load(urllib.request.urlopen(request))
open(sys.argv[2], "w").write(reply["choices"][0]["text"])
print(reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["usage"]["prompt_tokens"])
P
}
# expect WHAT CACHED TOKENS: CACHED (some, none) of the prompt's tokens were not computed, and the text is the first one.
expect() {
  local some=$2 cached=$3 tokens=$4
  [ -f "$scratch/first" ] || cp "$scratch/text" "$scratch/first"
  cmp -s "$scratch/first" "$scratch/text" || fail "$1: another text"
  if [ "$some" = some ]; then [ "$cached" -ge $((tokens - 80)) ]; else [ "$cached" = 0 ]; fi || fail "$1: $cached of $tokens tokens were cached"
}

start_server one
expect "the first time" none $(ask one)
expect "in the same session" some $(ask one)
end_server one
start_server two
expect "after a restart" some $(ask two)
expect "of another user" none $(ask two key-of-the-second-user)
start_server beside
expect "a server beside it" none $(ask beside)
end_server beside
end_server two
known=$(echo "$SWARM_CACHE"/prefixes/*)
[ "$(stat -c %a "$known")" = 600 ] || fail "$known may be read by others"
chmod 644 "$known"
start_server three
expect "with a file that others may read" none $(ask three)
end_server three
truncate -s 100 "$known"
start_server four
expect "with a file that is cut off" none $(ask four)
end_server four
