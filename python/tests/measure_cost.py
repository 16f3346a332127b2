"""What generating 128 tokens from Python costs over the same call from C, in CPU time.

python measure_cost.py MODEL [ROUNDS]

Two runs of one model differ by a tenth on a busy machine, so nothing is subtracted that was measured apart: within one
run, the time of Python is that of the process less that of the library, which is the time of its call (of its thread)
less what it spends in Python's callback. A callback in C around Python's keeps that time, so that entering Python counts,
too. All threads count, so also the one that reads the stream."""

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time

import swarmnode
from swarmnode import _native, _swarm_h

TOKENS = 128
GIVEN = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
AROUND = r"""
#include <time.h>
int (*inner)(void *, const void *);
long long spent, calls;
static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}
int around(void *context, const void *event) {
    long long before = now();
    int result = inner(context, event);
    spent += now() - before, calls++;
    return result;
}
"""


def compiled():
    with tempfile.NamedTemporaryFile(suffix=".so") as made:
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", made.name], input=AROUND.encode(), check=True)
        return ctypes.CDLL(made.name)


def main(path, rounds="10"):
    model, c = swarmnode.Model(None, path, threads=1), compiled()
    spent, calls = (ctypes.c_longlong.in_dll(c, name) for name in ("spent", "calls"))
    ids = model.prompt_ids("Once upon a time")[0]
    inside, call = [0], _native.lib.swarm_session_generate

    def timed(*arguments):
        before = time.thread_time_ns()
        result = call(*arguments)
        inside[0] += time.thread_time_ns() - before
        return result

    _native.lib.swarm_session_generate = timed
    session = model.session()
    ctypes.c_void_p.in_dll(c, "inner").value = ctypes.cast(session._on_event, ctypes.c_void_p).value
    _native.lib.swarm_session_on_event(session._pointer, ctypes.cast(c.around, _swarm_h.swarm_event_callback), None)
    events = []
    ways = {"generate()": lambda: session.generate(ids, **GIVEN),
            "generate(stream=True)": lambda: "".join(session.generate(ids, stream=True, **GIVEN)),
            "generate(), every event": lambda: session.generate(ids, **GIVEN)}
    found = {name: [] for name in ways}
    for i in range(int(rounds) + 1):
        for name, way in ways.items():
            session.on_event = events.append if "every" in name else None
            spent.value = calls.value = inside[0] = 0
            before = time.process_time_ns()
            way()
            own = inside[0] - spent.value
            if i:  # the first round reads the weights
                found[name].append(((time.process_time_ns() - before - own) / TOKENS / 1000, own / TOKENS / 1000, calls.value / TOKENS))
    for name, rows in found.items():
        of_python, own, n = (statistics.median(column) for column in zip(*rows))
        ratios = sorted(a / b for a, b, _ in rows)
        print(f"{name:24} {n:4.1f} events a token: {of_python:6.1f} us of {own:.0f} us, "
              f"{statistics.median(ratios):.2%} ({ratios[0]:.2%} to {ratios[-1]:.2%})")


main(*sys.argv[1:])
