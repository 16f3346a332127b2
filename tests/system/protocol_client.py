"""A client of one node, written from docs/PROTOCOL.md alone. Arguments: address, golden.safetensors, docs/PROTOCOL.md.

Exits with 77 and a reason if a package is missing; otherwise prints what it checked, or stops at the first error."""
import hashlib
import json
import os
import re
import struct
import sys
import time

from swarm_peer import PROTOCOL, connect, encode, introduce, msgpack, zmq

TIMEOUT_S = 10
F32, F16, Q8 = 0, 1, 3  # as in reply_dtype


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def begin_timeline(model, first, end, block_hashes):
    return sha256(b"swarm timeline 1 %d:%d" % (first, end), model, sha256(*block_hashes))


def check_example(document):
    text = open(document, encoding="utf-8").read()
    t = begin_timeline(b"\x11" * 32, 2, 4, [b"\x22" * 32, b"\x33" * 32])
    for i, row in enumerate([None, (1, -2), (0.5, 0)]):
        if row:
            t = sha256(t, struct.pack("<2f", *row))
        assert re.search(rf"T\({i}\) +{t.hex()}\n", text), f"T({i}) of the document's example is not {t.hex()}"


class Node:
    def __init__(self, address, key):
        self.context = zmq.Context()
        self.socket = connect(self.context, address, key)
        self.requests = 0

    def send(self, kind, rows=None, n_embd=0, **fields):
        self.requests += 1
        shape = [len(rows) // (4 * n_embd), n_embd] if rows is not None else None
        self.socket.send_multipart(encode(kind, shape, rows, correlation_id=self.requests, **fields))
        return self.requests

    def receive(self, request):
        until = time.monotonic() + TIMEOUT_S
        while self.socket.poll(max(0, 1000 * (until - time.monotonic()))):
            frames = self.socket.recv_multipart()
            message = msgpack.unpackb(frames[0])
            if message["correlation_id"] == request:
                return message, frames[1] if len(frames) > 1 else None
        raise SystemExit(f"no answer to request {request}")

    def ask(self, wanted, kind, rows=None, n_embd=0, **fields):
        message, tensor = self.receive(self.send(kind, rows, n_embd, **fields))
        assert message["kind"] == wanted, f"the reply to {kind} is {message}"
        return (message, tensor) if tensor is not None else message


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return lambda name: (header[name]["shape"], data[slice(*header[name]["data_offsets"])])


def difference(a, b):
    x, y = (struct.unpack(f"<{len(z) // 4}f", z) for z in (a, b))
    assert len(x) == len(y), f"{len(x)} numbers instead of {len(y)}"
    return max(abs(p - q) for p, q in zip(x, y))


def find_announcement(node, node_id):
    zero = bytes(32)
    everything = dict(protocol=PROTOCOL, model=zero, first_block=0, end_block=0, from_tag=0, to_tag=0, name="", known=[], announcements=[])
    for sealed in node.ask("peers_reply", "peers", **everything)["announcements"]:
        announcement = msgpack.unpackb(sealed[:-64])
        if announcement["node"] == node_id:
            assert announcement["state"] == 1 and announcement["expires_unix_ms"] > 1000 * time.time()
            return announcement
    raise SystemExit("the node does not announce itself")


def main(address, golden, document):
    check_example(document)
    node_id, key = introduce(address)
    node = Node(address, key)
    me = find_announcement(node, node_id)
    assert me["curve_key"] == key and me["first_block"] == 0 and me["end_block"] == me["n_blocks"]
    tensor = read_safetensors(golden)
    (n, n_embd), inputs = tensor("hidden.0")
    expected = tensor(f"hidden.{me['n_blocks']}")[1]
    row = 4 * n_embd
    kv_dtype = me["kv_dtype"]
    computes = [w if kv_dtype == F32 else sha256(w, b"swarm kv " + {F16: b"f16", Q8: b"q8"}[kv_dtype]) for w in me["block_hash"]]
    timeline = [begin_timeline(me["model"], 0, me["n_blocks"], computes)]
    for i in range(n):
        timeline.append(sha256(timeline[i], inputs[i * row:(i + 1) * row]))

    session = os.urandom(16)
    opened = node.ask("open_reply", "open", protocol=PROTOCOL, session=session, model=me["model"], first_block=0,
                      end_block=me["n_blocks"], max_tokens=2 * n, predecessor=bytes(32), next=[],
                      kv_source=bytes(32), adapter=bytes(32), request_id="made-from-the-page")
    assert opened["session"] == session and opened["step_tokens_max"] >= n

    def step(number, position, end, wanted="step_reply", base=None, changed={}):
        fields = dict(session=session, step=number, position=position, reply_dtype=0, timeline=base or timeline[position],
                      route=[], trace=[], wants_receipt=1, receipts=[], wants_timelines=0, timelines=[], request_id="made-from-the-page")
        answer = node.ask(wanted, "step", inputs[position * row:end * row], n_embd, **{**fields, **changed})
        if wanted == "error":
            return answer
        result, hidden = answer
        assert result["tensor"] == {"dtype": "F32", "shape": [end - position, n_embd]}, result
        trace, = result["trace"]
        assert trace["node"] == node_id and trace["timeline"] == timeline[end], "the timeline hash differs"
        receipt, = result["receipts"]
        weights = sha256(*computes)
        start = (b"swarm receipt 1\0" + node_id + session + me["model"] + weights + timeline[position] + timeline[end] +
                 sha256(inputs[position * row:end * row]) + sha256(hidden) + struct.pack("<QQ", number, position))
        assert receipt[:272] == start, "the receipt differs"
        assert receipt[280:299] == struct.pack("<4I3B", 0, me["n_blocks"], end - position, n_embd, 0, 0, kv_dtype)
        assert abs(struct.unpack("<Q", receipt[272:280])[0] - 1000 * time.time()) < 60000 and receipt[299] == 0
        return hidden

    whole = step(1, 0, n)
    worst = difference(whole, expected)
    assert worst < {F32: 1e-4, F16: 0.05, Q8: 1}[kv_dtype], f"hidden states differ from the reference by {worst}"
    assert step(1, 0, n) == whole, "the reply to a repeated step differs"
    hop = dict(node=node_id, timeline=timeline[n], first_block=0, end_block=1, queue_us=0, compute_us=0, node_us=0)
    for changed in (dict(trace=[hop], receipts=[b"short"]), dict(trace=[hop] * 60, receipts=[b""] * 60),
                    dict(receipts=[bytes(384)]), dict(reply_dtype=1 << 32), dict(reply_dtype=4),
                    dict(position=1 << 63), dict(wants_receipt=2), dict(trace=[dict(hop, end_block=1 << 32)])):
        for number in (1, 2):  # of a step that repeats the last one, and of the next one
            error = step(number, 0, n, "error", changed=changed)
            assert error["status"] == 3, f"{changed} is refused by {error}"
    assert step(1, 0, n) == whole, "a step that was refused has changed the session"
    assert step(2, n // 2, n) == whole[n // 2 * row:], "the bits differ after a rewind"
    assert step(3, 5, 6) == whole[5 * row:6 * row], "the bits of one token differ after a rewind"
    error = step(4, 6, 7, "error", b"\1" * 32)
    assert error["status"] == 2 and error["text"].startswith("MISMATCH") and error["session"] == session, error
    assert step(4, 7, 8, "error")["status"] == 3, "a position beyond the end is accepted"
    assert step(4, 6, n) == whole[6 * row:], "a failed step was counted"
    assert node.ask("status_reply", "status", protocol=PROTOCOL)["sessions"] == 1
    assert node.ask("error", "peers", protocol=999, model=bytes(32), first_block=0, end_block=0,
                    from_tag=0, to_tag=0, name="", known=[], announcements=[])["status"] == 3
    assert node.ask("close_reply", "close", session=session)["session"] == session
    assert step(5, 0, 1, "error")["status"] == 2, "the session still exists after it was closed"
    print(f"{n} tokens through blocks 0:{me['n_blocks']}; largest difference from the reference {worst:.1e}")
    node.socket.close()
    node.context.term()


main(*sys.argv[1:])
