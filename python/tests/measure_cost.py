"""What generating from Python costs beside the program `swarm`: the CPU time of a token, by turns, the medians of rounds.

python measure_cost.py MODEL [ROUNDS [SWARM]]

A token's time is that of a run of 129 tokens less that of a run of one, over 128, so that starting and reading the model
do not count; both use one thread. Python runs twice: whole, and as a stream. The last line is what the events of a token
take in Python, which the noise of a busy machine does not reach."""

import os
import resource
import statistics
import subprocess
import sys
import time

import swarmnode
from swarmnode import session

TOKENS = 128
GIVEN = {"temperature": 0, "ignore_eos": True}
PROMPT = "Once upon a time"


def cpu(who):
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def of_program(swarm, path, n):
    before = cpu(resource.RUSAGE_CHILDREN)
    subprocess.run([swarm, "generate", "--model", path, "--local", "all", "--threads", "1", "--prompt", PROMPT, "--json",
                    "--temperature", "0", "--ignore-eos", "--max-tokens", str(n)], check=True, stdout=subprocess.DEVNULL)
    return cpu(resource.RUSAGE_CHILDREN) - before


def of_python(model, n, stream):
    before = cpu(resource.RUSAGE_SELF)
    made = model.generate(PROMPT, stream=stream, max_tokens=n, **GIVEN)
    if stream:
        "".join(made)
    return cpu(resource.RUSAGE_SELF) - before


def main(path, rounds="7", swarm=os.path.join(os.environ.get("SWARM_BUILD", "build"), "swarm")):
    model = swarmnode.Model(None, path, threads=1)
    of_python(model, 1, False)
    ways = {"swarm": lambda n: of_program(swarm, path, n), "Python": lambda n: of_python(model, n, False),
            "Python, stream": lambda n: of_python(model, n, True)}
    times = {name: [] for name in ways}
    for _ in range(int(rounds)):
        for name, way in ways.items():
            times[name].append((way(TOKENS + 1) - way(1)) / TOKENS * 1000)
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, times["swarm"])]
        print(f"{name:16} {statistics.median(found):7.3f} ms of CPU a token (least {min(found):.3f}), "
              f"{statistics.median(ratios):.3f} of the program's")
    deliver, spent = session._deliver, []

    def timed(*arguments):
        before = time.thread_time_ns()
        try:
            return deliver(*arguments)
        finally:
            spent.append(time.thread_time_ns() - before)

    session._deliver = timed
    of_python(model, TOKENS + 1, True)
    each = sum(spent) / (TOKENS + 1) / 1e6
    print(f"events: {len(spent) / (TOKENS + 1):.1f} a token, {each:.3f} ms of CPU, {each / min(times['Python']):.2%} of its time")


main(*sys.argv[1:])
