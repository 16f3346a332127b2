"""What a model has in mind after every block ("logit lens"): the token that the LM head would say next.

python probe.py MODEL TEXT [HOST:PORT]"""

import sys

import swarmnode


def main(path, text, *join):
    model = swarmnode.Model(swarmnode.Swarm(join=join) if join else None, path)
    hidden = model.embed(model.tokenizer.encode(text))
    for i, block in enumerate(swarmnode.RemoteBlocks(model, k, k + 1) for k in range(model.blocks)):
        hidden = block(hidden)
        best = int(model.logits(hidden[-1]).argmax())
        print(f"after block {i:3}: {model.tokenizer.decode([best], special=True)!r}")


main(*sys.argv[1:])
