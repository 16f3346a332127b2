"""What Python clients in tests need to meet a node: its introduction, and a socket to it. Without pyzmq and msgpack the process
ends with 77 after the reason."""
import os
import re
import socket
import sys

try:
    import msgpack
    import zmq
    from zmq.utils import z85
except ImportError as missing:
    print(f"{missing}: install python3-zmq and python3-msgpack")
    sys.exit(77)

with open(os.path.join(os.path.dirname(__file__), "../../docs/PROTOCOL.md"), encoding="utf-8") as document:
    PROTOCOL = int(re.search(r"^\| `protocol` \|.*\| (\d+) \|$", document.read(), re.M)[1])  # its number


def introduce(address, source=None):
    """The node's id and CURVE key, by UDP. (Its signature is not checked here: this client has no Ed25519.)"""
    host, port = address.rsplit(":", 1)
    nonce = os.urandom(8)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        if source:
            s.bind((source, 0))
        s.settimeout(0.5)
        for _ in range(20):
            s.sendto((b"SWARM?1\0" + nonce).ljust(144, b"\0"), (host, int(port)))
            try:
                answer = s.recv(1000)
            except socket.timeout:
                continue
            if len(answer) == 144 and answer[:16] == b"SWARM!1\0" + nonce:
                return answer[16:48], answer[48:80]
    raise SystemExit("no introduction received")


def connect(context, address, key, kind=zmq.DEALER, source=None, **options):
    """A socket to the node with this CURVE key, under a new key of its own."""
    s = context.socket(kind)
    s.linger = 0
    s.curve_serverkey = z85.encode(key)
    s.curve_publickey, s.curve_secretkey = zmq.curve_keypair()
    for name, value in options.items():
        setattr(s, name, value)
    s.connect(f"tcp://{source}:0;{address}" if source else "tcp://" + address)
    return s


def encode(kind, shape=None, data=None, **fields):
    """The frames of a message; shape and data: of its tensor of float32."""
    head = dict(fields, kind=kind)
    if data is None:
        return [msgpack.packb(head)]
    head["tensor"] = {"dtype": "F32", "shape": shape}
    return [msgpack.packb(head), data]
