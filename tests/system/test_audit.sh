#!/usr/bin/env bash
# Audits between real nodes: honest nodes are checked and never accused, and the text is the same; unchecked steps are reported.
# tests/unit/client/audit/ test byzantine nodes.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$fixtures/golden/llama
golden_ids llama "$scratch/ids"
text=("$bin/swarm" generate --model "$model" --ids-file "$scratch/ids" --max-tokens 20 --ignore-eos --json)
audit=(--audit 0.2 --audit-seed 4 --evidence "$scratch/evidence")

start_node a "$model" 0:2 --isa c
wait_ready a
start_node b "$model" 2:4 --join "${address[a]}"
start_node c "$model" 0:4 --join "${address[a]}" --threads 2
start_node d "$model" 0:4 --join "${address[a]}" --isa c --threads 3
wait_ready b c d
succeeds "${text[@]}" --local all
ids=$(query "$scratch/run.out" 'd["ids"]')
for mode in "" --push --audit-local; do
  succeeds "${text[@]}" --join "${address[a]}" "${audit[@]}" $mode
  [ "$(query "$scratch/run.out" 'd["ids"]')" = "$ids" ] || fail "the audited text differs ($mode)"
  [ "$(query "$scratch/run.out" 'd["audit"]["nodes_banned"], d["audit"]["unchecked"], d["audit"]["checked"] == d["audit"]["steps"] >= 20')" = "(0, 0, True)" ] ||
    fail "the audit's report ($mode) is $(query "$scratch/run.out" 'd["audit"]')"
done
[ ! -e "$scratch/evidence" ] || fail "there is evidence against honest nodes"

# A pipe gets no text that is not checked yet: all of it comes at once, at the end, and then a line feed. Without an audit it
# comes token by token.
text_model
piped=("$bin/swarm" generate --model "$scratch/model" --prompt 7-3 --max-tokens 40 --ignore-eos --join "${address[a]}" --emulate-link 1gbit,10ms)
# first_piece OPTION...: how many bytes the program writes first, and how many in all.
first_piece() {
  timeout 100 python3 -c 'import socket, subprocess, sys
here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a pipe, but that each read returns one write
program = subprocess.Popen(sys.argv[1:], stdout=there)
there.close()
sizes = [len(piece) for piece in iter(lambda: here.recv(65536), b"")]
print(sizes[0], sum(sizes))' "${piped[@]}" "$@" 2>"$scratch/run.err"
}
read -r first all <<<"$(first_piece "${audit[@]}")"
[ "${all:-0}" -gt 40 ] && [ "$first" -ge $((all - 1)) ] || fail "with --audit a pipe got $first of $all bytes before the end"
read -r first all <<<"$(first_piece)"
[ "${first:-0}" -lt "${all:-0}" ] || fail "without --audit a pipe got nothing before the end"

# A span that only one node serves cannot be audited by another node, but with the model's file.
for name in b c d; do stop_node $name; done
start_node b "$model" 2:4 --join "${address[a]}"
wait_ready b
succeeds "${text[@]}" --join "${address[a]}" "${audit[@]}" --timeout 5
[ "$(query "$scratch/run.out" 'd["audit"]["checked"], d["audit"]["unchecked"] >= 40')" = "(0, True)" ] || fail "spans without an auditor count as checked"
succeeds "${text[@]}" --join "${address[a]}" "${audit[@]}" --audit-local
[ "$(query "$scratch/run.out" 'd["audit"]["unchecked"]')" = 0 ] || fail "--audit-local left steps unchecked"

refuses 2 "audit checks nodes" "${text[@]}" --local all --audit 0.5
refuses 2 "need --audit SHARE" "${text[@]}" --join "${address[a]}" --audit-local
refuses 2 "audit" "${text[@]}" --join "${address[a]}" --audit 1.5
refuses 2 "cannot be opened|No such file" "$bin/swarm" verify "$scratch/none" --model "$model"
refuses 2 "not a complete evidence file" "$bin/swarm" verify "$scratch/ids" --model "$model"
refuses 2 "give a file of evidence" "$bin/swarm" verify --model "$model"
stop_node a
stop_node b
