"""Text generation as a program for Petals does it: only the import and the model's name are others.

python generation.py MODEL PROMPT PEER..."""

import sys

from transformers import AutoTokenizer

from swarmnode.hf import AutoDistributedModelForCausalLM

model_name, prompt, *initial_peers = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model_name)
model = AutoDistributedModelForCausalLM.from_pretrained(model_name, initial_peers=initial_peers)

inputs = tokenizer(prompt, return_tensors="pt")["input_ids"]
outputs = model.generate(inputs, max_new_tokens=12)
print(tokenizer.decode(outputs[0]))
