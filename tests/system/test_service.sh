#!/usr/bin/env bash
# The systemd unit and the node's configuration as they are installed: a volunteer fills in one line, and the service's first start
# makes an identity, fetches the model into its cache and serves; stopped, it says what it gave. What the unit says is done by hand: its
# commands, variables and folders, by a user without a home who may write nowhere else.
. "$(dirname "$0")/lib.sh"
[ "$(id -u)" = 0 ] || skip "needs root: a user of its own"
command -v setpriv >/dev/null || skip "needs setpriv"
configs=$here/../../configs user=61234
unit() { sed -n "s/^$1=//p" "$configs/swarm-node.service"; }

# What the unit asks of systemd.
for pair in DynamicUser=yes StateDirectory=swarm CacheDirectory=swarm-node LimitCORE=0 NoNewPrivileges=yes RestartPreventExitStatus=2; do
  [ "$(unit "${pair%%=*}")" = "${pair#*=}" ] || fail "the unit does not say $pair"
done
[[ $(unit RestrictAddressFamilies) == *AF_NETLINK* ]] || fail "the service cannot read the addresses of its machine"
if command -v systemd-analyze >/dev/null; then
  sed "s|/usr/local/bin/|$(cd "$bin" && pwd)/|" "$configs/swarm-node.service" >"$scratch/swarm-node.service"
  succeeds systemd-analyze verify "$scratch/swarm-node.service"
  exposure=$(systemd-analyze security --offline=yes "$scratch/swarm-node.service" 2>/dev/null | sed -n 's/.*Overall exposure level.*: \([0-9.]*\).*/\1/p')
  [ -z "$exposure" ] || awk "BEGIN { exit !($exposure <= 1.6) }" || fail "systemd-analyze security rates the unit $exposure"
fi

# The machine: programs and configuration that all may read, folders of the service.
chmod 0711 "$scratch"
mkdir -p "$scratch/usr" "$scratch/etc" "$scratch/lib/swarm" "$scratch/cache/swarm-node"
cp "$bin/swarm" "$bin/swarm-node" "$scratch/usr/"
cp "$configs/node.conf" "$scratch/etc/"
chown -R $user "$scratch/lib/swarm" "$scratch/cache/swarm-node"
chmod 0700 "$scratch/lib/swarm" "$scratch/cache/swarm-node"
# by_unit LINE: a command of the unit with the paths of this machine.
by_unit() {
  sed "s|/usr/local/bin/|$scratch/usr/|g; s|/etc/swarm/|$scratch/etc/|g; s|%S|$scratch/lib|g; s|%C|$scratch/cache|g" <<<"$1"
}
variables=("$(by_unit "$(unit Environment)")" HOME=/ PATH=/usr/bin:/bin)
as_service=(env -C / -i "${variables[@]}" setpriv --reuid $user --regid $user --clear-groups --no-new-privs --bounding-set=-all)
eval "before=($(by_unit "$(unit ExecStartPre)"))"
read -ra main <<<"$(by_unit "$(unit ExecStart)")"
service_start() {
  succeeds "${as_service[@]}" "${before[@]}"
  start service "${as_service[@]}" "${main[@]}" --listen 127.0.0.1:0 --kv-memory 32MiB --threads 1
}

# Without the line, the sentence says what is missing, and systemd does not try again.
succeeds "${as_service[@]}" "${before[@]}"
refuses 2 'or --join alone' "${as_service[@]}" "${main[@]}"

text_model
start_node seed "$scratch/model" all
wait_ready seed
wait_until 60 grep -q 'weights shared' "$scratch/seed.err"
sed -i "s|^#join = [^ ]*|join = ${address[seed]}|" "$scratch/etc/node.conf"
[ "$(diff "$configs/node.conf" "$scratch/etc/node.conf" | grep -c '^>')" = 1 ] || fail "more than one line of node.conf was filled in"
service_start
wait_ready service
[ -n "$(find "$scratch/cache/swarm-node" -name '*.gguf' -o -name 'model.safetensors*' | head -1)" ] || fail "the model is not in the cache of the service"
id=$(sed -n 's/^ready:.* node=\([0-9a-f]*\).*/\1/p' "$scratch/service.out")
succeeds "$bin/swarm" generate --model "$scratch/model" --join "${address[service]}" --only "$id" --prompt "a" --max-tokens 5 --ignore-eos
stop_node service
grep -Eq 'given since the start hours=[0-9].* tokens=[1-9][0-9]* sessions=1 ' "$scratch/service.err" || fail "it does not say what it gave: $(tail -3 "$scratch/service.err")"

# The next start is the same node.
service_start
wait_ready service
[ "$id" ] && grep -q " node=$id" "$scratch/service.out" || fail "after a restart it is another node"
stop_node service
