"""Trains a classifier on the hidden state that remote blocks give a text's last token, in PyTorch, and says how often it
is right: lines of a .jsonl file with {"text", "label"}.

python classify.py MODEL TEXTS.jsonl [HOST:PORT]"""

import json
import sys

import torch

import swarmnode
from swarmnode import nn


def main(path, data, *join):
    model = swarmnode.Model(swarmnode.Swarm(join=join) if join else None, path)
    examples = [json.loads(line) for line in open(data)]
    names = sorted({e["label"] for e in examples})
    labels = torch.tensor([names.index(e["label"]) for e in examples])
    texts = [torch.tensor(model.tokenizer.encode(e["text"])) for e in examples]
    lengths = [len(t) for t in texts]
    with torch.no_grad():  # the blocks are frozen: their output is computed once
        hidden = nn.RemoteSequential(model)(nn.embed(model, torch.cat(texts)), lengths)
    last = hidden[torch.tensor(lengths).cumsum(0) - 1]
    last = torch.nn.functional.normalize(last, dim=-1) * 10
    torch.manual_seed(0)
    head = torch.nn.Linear(model.width, len(names))
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.05)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(head(last), labels).backward()
        optimizer.step()
    right = (head(last).argmax(-1) == labels).float().mean().item()
    print(f"{right:.0%} of {len(examples)} texts")


main(*sys.argv[1:])
