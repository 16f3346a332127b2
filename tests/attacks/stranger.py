"""A stranger at a node. Arguments: address, what, number. Prints what the node answered.

hoard N: opens sessions until N are open or the node refuses 20 times, and hangs up.
dial N: opens sessions that push to N addresses, one after the other.
hold N: opens a session, and does nothing for N seconds.
proven N: waits until the node lists N proven nodes.
weights N: asks for weights at full speed for N seconds, as if nothing was limited.
questions N: asks for the status of the node for N seconds, as fast as it is answered.
openings N: opens one session again and again for N seconds, as fast as it is answered.
pages N: asks for announcements for N seconds, as fast as it is answered.
crowd N: the same from 127.0.0.9, with a new key for every ten pages, eight keys at a time, for N seconds and, while none was refused, up to a
minute.
introductions N: asks for introductions by UDP for N seconds, as fast as it can send.
experts N: asks for experts of the node's last block for N seconds, 512 rows at a time, 64 requests at a time.
steps N: steps of ROWS rows (8) in 16 sessions over different blocks for N seconds, in each the next one when one is answered.
greedy N: KEYS clients (1) with SESSIONS sessions (16) over all blocks each, of steps of ROWS rows (1) that no prefix cache has, for N
seconds; a session ends after TOKENS (512), and another one begins."""
import os
import random
import socket
import struct
import sys
import time

from swarm_peer import PROTOCOL, connect, encode, introduce, msgpack, zmq

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError as missing:
    print(f"{missing}: install python3-cryptography")
    sys.exit(77)

ZERO = bytes(32)


class Stranger:
    def __init__(self, address):
        self.address = address
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.node, self.key = introduce(address)
        self.socket = connect(zmq.Context.instance(), address, self.key)
        self.asked = 0

    def send(self, kind, shape=None, data=None, **fields):
        self.asked += 1
        self.socket.send_multipart(encode(kind, shape, data, correlation_id=self.asked, **fields))

    def receive(self, seconds=10):
        if not self.socket.poll(1000 * seconds):
            return None
        return msgpack.unpackb(self.socket.recv_multipart()[0])

    def send_peers(self, announcements):
        self.send("peers", protocol=PROTOCOL, model=ZERO, first_block=0, end_block=0, from_tag=0, to_tag=0, name="", known=[],
                  announcements=announcements)

    def peers(self, announcements):
        self.send_peers(announcements)
        return self.receive()

    def announcement(self):
        return msgpack.unpackb(self.peers([])["announcements"][0][:-64])  # the node's own comes first

    def send_open(self, me, session, next=()):
        self.send("open", protocol=PROTOCOL, session=session, model=me["model"], first_block=me["first_block"], end_block=me["end_block"],
                  max_tokens=64, predecessor=ZERO, next=list(next), kv_source=ZERO, adapter=ZERO, request_id="stranger")

    def open(self, me, next=()):
        session = os.urandom(16)
        self.send_open(me, session, next)
        while (answer := self.receive()) and answer["correlation_id"] != self.asked:
            pass  # a late answer to something else
        return session, answer


def take_weights(stranger, seconds):
    """Keeps 64 requests open, whatever the node says to them."""
    while not any(manifest := stranger.announcement()["manifest"]):
        time.sleep(0.1)
    stranger.send("weights_offer", manifest=manifest, file=2)
    size = stranger.receive()["ranges"][-1]["to"]
    took = refused = waiting = 0
    began = time.monotonic()
    print("begins", flush=True)
    while time.monotonic() - began < seconds:
        while waiting < 64:
            stranger.send("weights", manifest=manifest, file=2, **{"from": 0}, bytes=min(size, 1 << 17))
            waiting += 1
        reply = stranger.receive()
        waiting -= 1
        took += sum(map(len, reply.get("bytes", [])))
        refused += reply["kind"] == "error"
    print(f"took {took} in {time.monotonic() - began:.2f} and was refused {refused}", flush=True)


def keep_asking(stranger, seconds, ask, answer):
    """Keeps 64 requests open."""
    answers = waiting = 0
    began = time.monotonic()
    print("begins", flush=True)
    while time.monotonic() - began < seconds:
        while waiting < 64:
            ask()
            waiting += 1
        answers += stranger.receive()["kind"] == answer
        waiting -= 1
    print(f"answered {answers} in {time.monotonic() - began:.2f}", flush=True)


def ask_questions(stranger, seconds):
    keep_asking(stranger, seconds, lambda: stranger.send("status", protocol=PROTOCOL), "status_reply")


def open_again(stranger, seconds):
    me, session = stranger.announcement(), os.urandom(16)
    keep_asking(stranger, seconds, lambda: stranger.send_open(me, session), "open_reply")


def ask_for_pages(stranger, seconds):
    keep_asking(stranger, seconds, lambda: stranger.send_peers([]), "peers_reply")


def ask_as_a_crowd(stranger, seconds):
    counts = {}
    began = time.monotonic()
    ask = encode("peers", protocol=PROTOCOL, correlation_id=1, model=ZERO, first_block=0, end_block=0, from_tag=0, to_tag=0, name="", known=[],
                 announcements=[])
    print("begins", flush=True)
    while time.monotonic() - began < (seconds if "error" in counts else max(seconds, 60)):
        crowd = [connect(zmq.Context.instance(), stranger.address, stranger.key, source="127.0.0.9") for _ in range(8)]
        for s in 10 * crowd:
            s.send_multipart(ask)
        for s in 10 * crowd:
            kind = msgpack.unpackb(s.recv_multipart()[0])["kind"] if s.poll(2000) else "none"
            counts[kind] = counts.get(kind, 0) + 1
        for s in crowd:
            s.close()
    print("answers", *(f"{n} {kind}" for kind, n in counts.items()), flush=True)


def ask_for_introductions(stranger, seconds):
    sent = answered = 0
    began = time.monotonic()
    print("begins", flush=True)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((stranger.host, stranger.port))
        s.setblocking(False)
        while time.monotonic() - began < seconds:
            try:
                sent += s.send((b"SWARM?1\0" + os.urandom(8)).ljust(144, b"\0")) > 0
                while s.recv(1000):
                    answered += 1
            except BlockingIOError:
                pass
    print(f"sent {sent} and was answered {answered} times", flush=True)


def ask_for_experts(stranger, seconds, width=64):
    me = stranger.announcement()
    held = me["experts"] or [0, 1, 1]
    pairs = [{"row": row, "expert": held[0] + row % (held[1] - held[0])} for row in range(512)]
    block = dict(block=me["end_block"] - 1, block_hash=me["block_hash"][-1])
    computed = refused = waiting = 0
    began = time.monotonic()
    print("begins", flush=True)
    while time.monotonic() - began < seconds:
        while waiting < 64:
            stranger.send("experts", [512, width], bytes(4 * 512 * width), protocol=PROTOCOL, pairs=pairs, **block)
            waiting += 1
        kind = stranger.receive()["kind"]
        waiting -= 1
        computed += kind == "experts_reply"
        refused += kind == "error"
    print(f"was answered {computed} times and refused {refused}", flush=True)


def compute_steps(stranger, seconds):
    me, width, rows, sessions = stranger.announcement(), int(os.environ.get("WIDTH", "576")), int(os.environ.get("ROWS", "8")), {}
    data = b"\0\0\0\x3f" * (rows * width)
    for i in range(16):
        session, limit = os.urandom(16), 1024
        end = max(me["first_block"] + 1, me["end_block"] - i)
        stranger.send("open", protocol=PROTOCOL, session=session, model=me["model"], first_block=me["first_block"], end_block=end, max_tokens=limit,
                      predecessor=ZERO, next=[], kv_source=ZERO, adapter=ZERO, request_id="stranger")
        sessions[session] = [0, limit // rows, end]
    answered = refused = 0

    def step(session):
        done, most, end = sessions[session]
        if done == most:
            return
        sessions[session][0] += 1
        stranger.send("step", [rows, width], data, session=session, step=done + 1, position=done * rows, reply_dtype=0, timeline=ZERO, route=[],
                      trace=[], wants_receipt=0, receipts=[], wants_timelines=0, timelines=[], request_id="stranger")

    began = time.monotonic()
    print("begins", flush=True)
    for session in sessions:
        step(session)
    while time.monotonic() - began < seconds:
        reply = stranger.receive(2)
        if not reply:
            break
        answered += reply["kind"] == "step_reply"
        refused += reply["kind"] == "error"
        if reply["kind"] == "step_reply":
            step(reply["session"])
    print(f"was answered {answered} times and refused {refused} in {time.monotonic() - began:.2f}", flush=True)


def be_greedy(stranger, seconds):
    width, rows = int(os.environ.get("WIDTH", "576")), int(os.environ.get("ROWS", "1"))
    me, limit, done, computed, poller = stranger.announcement(), int(os.environ.get("TOKENS", "512")), {}, 0, zmq.Poller()
    clients = [stranger] + [Stranger(stranger.address) for _ in range(int(os.environ.get("KEYS", "1")) - 1)]
    noise = struct.pack("<4096f", *(random.uniform(-1, 1) for _ in range(4096))) * (1 + rows * width // 4096)

    def begin(client):
        session = os.urandom(16)
        client.send("open", protocol=PROTOCOL, session=session, model=me["model"], first_block=me["first_block"], end_block=me["end_block"],
                    max_tokens=limit, predecessor=ZERO, next=[], kv_source=ZERO, adapter=ZERO, request_id="stranger")
        done[session] = 0
        step(client, session)

    def step(client, session):
        if done[session] == limit // rows:
            del done[session]
            client.send("close", session=session)
            return begin(client)
        data = struct.pack("<f", random.uniform(-1, 1)) + noise[4 : 4 * rows * width]
        client.send("step", [rows, width], data, session=session, step=done[session] + 1, position=done[session] * rows, reply_dtype=0,
                    timeline=ZERO, route=[], trace=[], wants_receipt=0, receipts=[], wants_timelines=0, timelines=[], request_id="stranger")
        done[session] += 1

    for client in clients:
        poller.register(client.socket, zmq.POLLIN)
        for _ in range(int(os.environ.get("SESSIONS", "16"))):
            begin(client)
    began = time.monotonic()
    print("begins", flush=True)
    while time.monotonic() - began < seconds:
        ready = dict(poller.poll(1000))
        for client in clients:
            while client.socket in ready and client.socket.poll(0):
                reply = client.receive()
                if reply["kind"] == "error":
                    sys.exit(f"refused: {reply['text']}")
                if reply["kind"] == "step_reply":
                    computed += rows
                    step(client, reply["session"])
    print(f"computed {computed} rows in {time.monotonic() - began:.2f}", flush=True)


def invented(template, i, address=None):
    key = Ed25519PrivateKey.generate()
    a = dict(template, node=key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw), curve_key=os.urandom(32), name=f"node{i}",
             address=address or f"127.{1 + i % 200}.{i // 200 % 250}.1:9", expires_unix_ms=int(time.time() * 1000) + 119000,
             sequence=int(time.time() * 1000), decode_us=100, tokens_per_s=100000, prompt_tokens_per_s=1000000, kv_bytes_free=1 << 40,
             first_block=0, end_block=template["n_blocks"], block_hash=[ZERO] * template["n_blocks"])
    sealed = msgpack.packb(a)
    return sealed + key.sign(sealed)


def hoard(stranger, n):
    me, opened, refused, why = stranger.announcement(), 0, 0, ""
    while opened < n and refused < 20:
        answer = stranger.open(me)[1]
        opened += answer["kind"] == "open_reply"
        refused += answer["kind"] == "error"
        why = answer.get("text", why)
    print(f"opened {opened} {why}", flush=True)


def dial(stranger, n):
    me = stranger.announcement()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    for i, listener in enumerate(listeners):
        listener.settimeout(0)
        next_node = invented(me, i, "127.0.0.1:%d" % listener.getsockname()[1])
        session, answer = stranger.open(me, [next_node])
        if answer["kind"] != "open_reply":
            break
        stranger.send("step", [1, 64], bytes(4 * 64), session=session, step=1, position=0, reply_dtype=0, timeline=ZERO, trace=[], wants_receipt=0, wants_timelines=0,
                      receipts=[], timelines=[], request_id="stranger", route=[dict(session=os.urandom(16), dtype=0, timeline=ZERO)])
        stranger.receive(0.05)
        stranger.send("close", session=session)
        stranger.receive(0.2)
    dialled, until = set(), time.monotonic() + 20
    while not dialled and time.monotonic() < until:
        time.sleep(0.3)
        for i, listener in enumerate(listeners):
            try:
                listener.accept()
                dialled.add(i)
            except BlockingIOError:
                pass
    print(f"dialled {len(dialled)}", flush=True)


def hold(stranger, n):
    print("held", stranger.open(stranger.announcement())[1]["kind"], flush=True)
    time.sleep(n)


def proven(stranger, n):
    """Waits until the node lists N proven nodes, itself among them."""
    until = time.monotonic() + 60
    while stranger.peers([])["proven"] < n:
        if time.monotonic() > until:
            sys.exit("too few proven nodes after a minute")
        time.sleep(0.1)


if __name__ == "__main__":
    attacks = {"proven": proven, "hoard": hoard, "dial": dial, "hold": hold, "weights": take_weights, "questions": ask_questions,
               "openings": open_again, "pages": ask_for_pages, "crowd": ask_as_a_crowd, "introductions": ask_for_introductions, "experts": ask_for_experts, "steps": compute_steps,
               "greedy": be_greedy}
    attacks[sys.argv[2]](Stranger(sys.argv[1]), int(sys.argv[3]))
