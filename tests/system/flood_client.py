"""Floods a node from four clients. Arguments: address, what, seconds. Prints how many messages it sent.

bytes: steps of 1 MiB for sessions that do not exist, and answers are never read; sessions: one OPEN after another, and answers
are counted; junk: frames that are no messages; announcements: without a valid signature; training: a long sequence through all
blocks in each message, of SHAPE tokens, width, blocks."""
import os
import sys
import time

from swarm_peer import PROTOCOL, connect, encode, introduce, msgpack, zmq


def step(i):
    rows = 4096
    return encode("step", [rows, 64], bytes(4 * 64 * rows), correlation_id=i, session=os.urandom(16), step=1, position=0,
                  reply_dtype=0, timeline=bytes(32), route=[], trace=[], wants_receipt=0, receipts=[], wants_timelines=0, timelines=[], request_id="flood")


def open_session(i):
    return encode("open", protocol=PROTOCOL, correlation_id=i, session=os.urandom(16), model=MODEL, first_block=0, end_block=4,
                  max_tokens=64, predecessor=bytes(32), next=[], kv_source=bytes(32), adapter=bytes(32), request_id="flood")


def junk(i):
    return [os.urandom(1 + i * 7919 % 60000)] + [b""] * (i % 4)


def announcements(i):
    sealed = [os.urandom(1000) for _ in range(200)]
    return encode("peers", protocol=PROTOCOL, correlation_id=i, model=bytes(32), first_block=0, end_block=0, from_tag=0, to_tag=0, name="",
                  known=[], announcements=sealed)


def training(i):
    tokens, width, blocks = map(int, os.environ["SHAPE"].split(","))
    return encode("forward", [tokens, width], b"\0\0\0\x3f" * (tokens * width), protocol=PROTOCOL, correlation_id=i, model=MODEL,
                  first_block=0, end_block=blocks, adapter=bytes(32), samples=[dict(tokens=tokens)], save_activations=0)


MODEL = bytes.fromhex(os.environ.get("MODEL", "00" * 32))
FLOODS = {"bytes": step, "training": training, "sessions": open_session, "junk": junk, "announcements": announcements}


def main(address, what, seconds):
    key, context, make = introduce(address)[1], zmq.Context(), FLOODS[what]
    until, sent = time.monotonic() + float(seconds), 0
    sockets = [connect(context, address, key, sndhwm=16, rcvhwm=4) for _ in range(4)]  # each with a key of its own
    answers, answered = {}, [0] * len(sockets)

    def is_over():  # on a busy machine it lasts until it was a flood
        enough = sent > 20 and (what != "sessions" or min(answered) >= 4)
        return time.monotonic() > until + (0 if enough else 40)

    while not is_over():
        for i, s in enumerate(sockets):
            try:
                s.send_multipart(make(sent), zmq.DONTWAIT)
                sent += 1
                time.sleep(float(os.environ.get("PACE", "0")))
            except zmq.Again:
                time.sleep(0.0005)
            while what == "sessions" and s.poll(0):
                answer = msgpack.unpackb(s.recv_multipart()[0])
                answers[answer["kind"]] = answers.get(answer["kind"], 0) + 1
                answered[i] += 1
    print(f"{what}: {sent} messages", *(f"{n} {kind}" for kind, n in answers.items()))
    assert sent > 20, "too few messages for a flood"
    context.destroy(0)


main(*sys.argv[1:])
