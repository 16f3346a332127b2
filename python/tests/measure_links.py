"""Decoding and forward passes from Python over three nodes behind emulated links, beside the program's.

python measure_links.py MODEL [LINK...]     (a link is RATE,RTT; the folder of the programs is SWARM_BUILD, or build)

A step is the time between two tokens: a run of 24 tokens less one of 4, over 20; the best of three. A forward pass is of
128 tokens through all blocks, the best of three."""

import json
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch

import swarmnode
from conftest import BUILD, Nodes
from swarmnode.hf import DistributedModelForCausalLM

PROMPT = "Once upon a time"
GIVEN = {"temperature": 0, "ignore_eos": True}


def seconds(call, *arguments):
    before = time.monotonic()
    call(*arguments)
    return time.monotonic() - before


def steps(run):
    return 20 / min(seconds(run, 24) - seconds(run, 4) for _ in range(3))


def main(path, *links):
    blocks = swarmnode.Model(None, path).blocks
    cuts = [blocks * i // 3 for i in range(4)]
    for link in links or ("1gbit,5ms", "100mbit,5ms", "100mbit,100ms"):
        with tempfile.TemporaryDirectory() as folder:
            nodes = Nodes(folder)
            try:
                for a, b in zip(cuts, cuts[1:]):
                    nodes.start(path, f"{a}:{b}", "--emulate-link", link)
                measure(path, link, nodes.addresses)
            finally:
                nodes.end()


def measure(path, link, join):
    model = swarmnode.Model(swarmnode.Swarm(join=join, emulate_link=link), path, threads=1)
    ids = model.prompt_ids(PROMPT)[0]
    distributed = DistributedModelForCausalLM.from_pretrained(path, swarm=model.swarm)

    def program(n):
        subprocess.run([BUILD / "swarm", "generate", "--model", path, "--join", join[0], "--emulate-link", link, "--threads", "1", "--prompt",
                        PROMPT, "--json", "--temperature", "0", "--ignore-eos", "--max-tokens", str(n)], check=True, stdout=subprocess.DEVNULL)

    def transformers(n):
        with distributed.inference_session() as session:
            distributed.generate(torch.tensor([ids]), max_new_tokens=n, do_sample=False, eos_token_id=None, session=session)

    def blocks(n):
        with swarmnode.RemoteBlocks(model).inference_session(max_length=64) as session:
            hidden = session.step(model.embed(ids))
            for _ in range(n - 1):
                hidden = session.step(model.embed([int(model.logits(hidden[-1]).argmax())]))

    ways = {"swarm generate": program, "generate()": lambda n: model.generate(ids, max_tokens=n, **GIVEN),
            "generate() of transformers": transformers, "RemoteBlocks": blocks}
    rates = {name: round(steps(way), 2) for name, way in ways.items()}
    hidden, remote = model.embed(np.arange(128) % model.vocab), swarmnode.RemoteBlocks(model)
    forward = 128 / min(seconds(remote, hidden) for _ in range(3))
    print(link, json.dumps(rates), f"forward {forward:.0f} tokens/s", flush=True)


main(*sys.argv[1:])
