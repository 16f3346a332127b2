#!/usr/bin/env python3
"""What `swarm serve` costs beside the library: the same answers over one node, by `swarm bench --answers` and by `swarm bench
--server`, in turns. Prints tokens/s of all sessions and the CPU time of each process for a token, and their medians.

usage: server_cost.py BUILD MODEL [SESSIONS [PROMPT [NEW [ROUNDS]]]]    (16 64 64 6; PREFIX: words before each command)
"""
import json, os, statistics, subprocess, sys

build, model = sys.argv[1:3]
sessions, prompt, new, rounds = (int(a) for a in (sys.argv[3:] + ["16", "64", "64", "6"][len(sys.argv) - 3 :]))
prefix, ticks, repeat = os.environ.get("PREFIX", "").split(), os.sysconf("SC_CLK_TCK"), 2


def start(program, *options):
    child = subprocess.Popen([*prefix, f"{build}/{program}", *options], stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if line.startswith("ready: "):
            return child, line.split("address=")[1].split()[0]
    sys.exit(f"{program} does not start")


def cpu(child):
    with open(f"/proc/{child.pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / ticks


def bench(*options):
    command = [*prefix, f"{build}/swarm", "bench", *options, "--prompt-tokens", str(prompt), "--new-tokens", str(new), "--repeat",
               str(repeat), "--warmup", "0", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    row = json.loads(child.stdout.read())["rows"][0]
    used = os.wait4(child.pid, 0)[2]
    child.returncode = 0
    return row.get("answer_tok_s") or row["tok_s"], used.ru_utime + used.ru_stime


node, address = start("swarm-node", "--model", model, "--blocks", "all", "--listen", "127.0.0.1:0", "--threads", "2", "--kv-memory",
                      "4GiB", "--max-sessions", "256", "--client-sessions", "256", "--log-level", "warn")
server, listen = start("swarm", "serve", "--model", model, "--join", address, "--listen", "127.0.0.1:0", "--threads", "2",
                       "--max-sessions", str(sessions))
ways = {"library": ["--model", model, "--join", address, "--answers", "--sessions", str(sessions), "--threads", "2"],
        "server": ["--server", f"http://{listen}", "--clients", str(sessions)]}
rows = {way: [] for way in ways}
for i in range(rounds):
    for way, options in ways.items():
        before = cpu(node), cpu(server)
        tok_s, client = bench(*options, *(["--seed", str(os.getpid() * 100 + i)] if way == "server" else []))
        ms = [1000 * t / (sessions * new * repeat) for t in (cpu(node) - before[0], cpu(server) - before[1], client)]
        rows[way].append([tok_s, *ms, sum(ms)])
for way, list_ in rows.items():
    tok_s, *ms = (statistics.median(column) for column in zip(*list_))
    print(f"{way:8}{tok_s:8.1f} tokens/s; CPU ms a token: " +
          ", ".join(f"{what} {t:.3f}" for what, t in zip(("node", "server", "client", "all"), ms)))
for child in (server, node):
    child.terminate()
    child.wait()
