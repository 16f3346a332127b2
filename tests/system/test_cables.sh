#!/usr/bin/env bash
# Cables are pulled and put back while a text is generated over volunteers behind routers: the text is the same. SEED draws which
# cables, when and for how long.
. "$(dirname "${BASH_SOURCE[0]}")/nat.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids" 8
host r1 11
host r2 12
home a 21
home b 22
home c 23
start_at r1 "$model" 0:1 --listen 203.0.113.11:31330
wait_ready r1
start_at r2 "$model" 0:1 --join 203.0.113.11:31330
wait_ready r2
join=(--join 203.0.113.11:31330 --join 203.0.113.12:31330)
for name in a:1:3 b:3:4; do start_at "${name%%:*}" "$model" "${name#*:}" "${join[@]}"; done
wait_ready a b
for name in a b; do wait_log $name 'reached by others.*how=relayed' 60; done

generate=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --ignore-eos --json --max-tokens 100)
opened=$(grep -c 'session opened' "$scratch/b.err")
start text ip netns exec c timeout -k 2 150 "${generate[@]}" "${join[@]}" --timeout 100 --max-retries 50 --emulate-link 100mbit,50ms
wait_log b 'session opened' 60 $((opened + 1))
RANDOM=${SEED:-1}
cables=(a-router b-router c-router r1 r2)
pulled=0
for ((i = 0; i < 8; i++)); do
  cable=v${cables[RANDOM % ${#cables[@]}]}
  pause $((RANDOM % 2)).$((RANDOM % 10))
  kill -0 "${pid[text]}" 2>/dev/null && pulled=$((pulled + 1))
  ip link set "$cable" down
  pause $((RANDOM % 3)).$((1 + RANDOM % 9))
  ip link set "$cable" up
done
[ "$pulled" -ge 3 ] || fail "the text was complete before three cables could be pulled"
wait_end text 150
[ $rc = 0 ] || fail "exit code $rc"
cp "$scratch/text.out" "$scratch/through"
succeeds "${generate[@]}" --local all
[ "$(query "$scratch/through" 'd["ids"]')" = "$(query "$scratch/run.out" 'd["ids"]')" ] || fail "another text after $pulled pulled cables"
exit 0
