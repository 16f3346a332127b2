#!/usr/bin/env python3
"""Training speed of PyTorch with PEFT on a random model of SmolLM2-135M's shape (or of --config), float32, for comparison
with `swarm bench --train`: forward, loss, backward, AdamW over batches of equal length.

    pip install torch transformers peft
    bench_torch.py [--threads 1] [--method lora|prompt] [--batch 4] [--seq 128] [--repeat 5]

Prints tokens/s by the clock, and by the processor time of all threads together, which other programs on the machine disturb less.
"""
import argparse, statistics, time
import peft, torch, transformers

a = argparse.ArgumentParser()
a.add_argument("--threads", type=int, default=1)
a.add_argument("--method", choices=["lora", "prompt"], default="lora")
a.add_argument("--batch", type=int, default=4)
a.add_argument("--seq", type=int, default=128)
a.add_argument("--repeat", type=int, default=5)
a.add_argument("--config", help="a folder with config.json")
a = a.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
config = (transformers.AutoConfig.from_pretrained(a.config) if a.config else
          transformers.LlamaConfig(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                                   num_key_value_heads=3, vocab_size=49152, max_position_embeddings=2048,
                                   rope_theta=10000.0, tie_word_embeddings=True))
model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
wish = (peft.LoraConfig(task_type="CAUSAL_LM", r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"])
        if a.method == "lora" else peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=16))
model = peft.get_peft_model(model, wish)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
clock, cpu = [], []
for i in range(a.repeat + 1):  # the first repeat is not counted
    ids = torch.randint(0, config.vocab_size, (a.batch, a.seq))
    began, began_cpu = time.perf_counter(), time.process_time()
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if i:
        clock.append(a.batch * a.seq / (time.perf_counter() - began))
        cpu.append(a.batch * a.seq / (time.process_time() - began_cpu))
print(f"torch {torch.__version__}, {a.method}, {a.threads} threads, {a.batch} x {a.seq} tokens: "
      f"{statistics.median(clock):.0f} tok/s ({min(clock):.0f} to {max(clock):.0f}), "
      f"{statistics.median(cpu):.0f} a second of processor time ({min(cpu):.0f} to {max(cpu):.0f})")
