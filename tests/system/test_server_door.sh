#!/usr/bin/env bash
# What stands before a request to `swarm serve`: keys in files that others cannot read, TLS as strong as it is today, paths
# that say what they mean.
. "$(dirname "$0")/lib.sh"
[ -n "${SN_TEST_MODEL:-}" ] || skip "text needs SN_TEST_MODEL"
for tool in openssl curl; do command -v $tool >/dev/null || skip "needs $tool"; done
serving=("$bin/swarm" serve --model "$SN_TEST_MODEL" --local all --listen 127.0.0.1:0)

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 \
  -keyout "$scratch/key.pem" -out "$scratch/cert.pem" 2>/dev/null || fail "openssl makes no certificate"
echo a-key-of-the-server >"$scratch/keys"
chmod 640 "$scratch/key.pem" "$scratch/keys"
refuses 2 'tls-key: .*/key.pem can be read or written by others \(mode 640\)' "${serving[@]}" --tls-cert "$scratch/cert.pem" --tls-key "$scratch/key.pem"
refuses 2 'api-key-file: .*/keys can be read or written by others \(mode 640\)' "${serving[@]}" --api-key-file "$scratch/keys"
chmod 600 "$scratch/key.pem" "$scratch/keys"

start tls "${serving[@]}" --tls-cert "$scratch/cert.pem" --tls-key "$scratch/key.pem" --api-key-file "$scratch/keys"
wait_ready tls
succeeds curl -sS --max-time 60 --cacert "$scratch/cert.pem" "https://${address[tls]}/health"
# speaks OPTION...: what a client that offers this and nothing else agrees on; "" if nothing.
speaks() {
  openssl s_client -connect "${address[tls]}" "$@" </dev/null 2>&1 | sed -n 's/^ *Cipher *: *//p; s/^New, \(TLS.*\), Cipher is /\1 /p' |
    grep -v '0000\|NONE' | tail -n 1
}
for suite in ECDHE-RSA-AES128-GCM-SHA256 ECDHE-RSA-AES256-GCM-SHA384 ECDHE-RSA-CHACHA20-POLY1305; do
  [ -n "$(speaks -tls1_2 -cipher $suite)" ] || fail "TLS 1.2 with $suite is refused"
done
[ -n "$(speaks -tls1_3)" ] || fail "TLS 1.3 is refused"
for old in "-tls1" "-tls1_1" "-tls1_2 -cipher AES128-GCM-SHA256" "-tls1_2 -cipher AES256-SHA" "-tls1_2 -cipher ECDHE-RSA-AES128-SHA" \
  "-tls1_2 -cipher ECDHE-RSA-AES256-SHA384"; do
  [[ $old = *-cipher* ]] && level=@SECLEVEL=0 || level=" -cipher ALL:@SECLEVEL=0"
  agreed=$(speaks $old$level)
  [ -z "$agreed" ] || fail "a client with $old is answered: $agreed"
done
stop_node tls

# A NUL, behind which the server would not look, is refused and not cut off.
start plain "${serving[@]}"
wait_ready plain
for path in /health /health%00 /health%00x /%00 /v1/models%00/..; do
  code=$(curl -sS --max-time 60 -o "$scratch/answer" -w '%{http_code}' --path-as-is "http://${address[plain]}$path") || fail "no answer to $path"
  [ "$path" = /health ] && expected=200 || expected=400
  [ "$code" = $expected ] || fail "$path is answered by $code: $(cat "$scratch/answer")"
done
stop_node plain
