"""A chat as a program for Petals does it: one inference session, a token with every call, the prompt with the first.

python chat.py MODEL PEER... <LINES"""

import sys

from transformers import AutoTokenizer

from swarmnode.hf import AutoDistributedModelForCausalLM

model_name, *initial_peers = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(model_name)
model = AutoDistributedModelForCausalLM.from_pretrained(model_name, initial_peers=initial_peers)

with model.inference_session(max_length=120) as sess:
    for line in sys.stdin:
        prefix = tokenizer(f"Human: {line}AI:", return_tensors="pt")["input_ids"]
        for _ in range(10):
            outputs = model.generate(prefix, max_new_tokens=1, session=sess, do_sample=False)
            print(int(outputs[0, -1]), end=" ", flush=True)
            prefix = None  # the session has it
        print(sess.position)
