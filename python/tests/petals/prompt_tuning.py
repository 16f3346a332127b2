"""Prompt tuning as a program for Petals does it: prints the loss of every step, then what the tuned model says.

python prompt_tuning.py MODEL MODE TEXT PEER..."""

import sys

import torch
from transformers import AutoTokenizer

from swarmnode.hf import AutoDistributedModelForCausalLM

model_name, tuning_mode, text, *initial_peers = sys.argv[1:]
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(model_name)
model = AutoDistributedModelForCausalLM.from_pretrained(
    model_name, initial_peers=initial_peers, tuning_mode=tuning_mode, pre_seq_len=4
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

model.train()
batch = tokenizer([text], return_tensors="pt")
for _ in range(20):
    outputs = model.forward(batch["input_ids"])
    loss = torch.nn.functional.cross_entropy(outputs.logits[0, :-1], batch["input_ids"][0, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.4f}")

model.eval()
outputs = model.generate(batch["input_ids"][:, :4], max_new_tokens=6, do_sample=False)
print(outputs[0, 4:].tolist(), batch["input_ids"][0, 4:10].tolist())
