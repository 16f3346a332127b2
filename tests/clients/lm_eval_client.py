"""lm-evaluation-harness against `swarm serve`: lm_eval_client.py URL SWARM MODEL FOLDER.

A text, and the choices of questions, are scored by `local-completions` and by `swarm eval`, and questions are answered by `local-chat-completions` and by
`swarm generate --chat`: the results must be the same. FOLDER gets the tasks and a tokenizer made from the GGUF file."""

import json
import math
import os
import subprocess
import sys

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

url, swarm, model, folder = sys.argv[1:]
os.environ["HF_HUB_OFFLINE"] = "1"
import lm_eval
from lm_eval.tasks import TaskManager

TEXTS = [
    "The swarm holds the blocks of one model in several nodes, and a client chains them. A node that fails is replaced.",
    "Water boils at one hundred degrees, and freezes at zero.",
]
QUESTIONS = ["Name one colour.", "What is 2 and 2?"]
CHOICES = [("The capital of France is", ["Paris", "a stone", "Lisbon, the old town"]), ("Water is", ["wet", "an odd number"])]
CONTROL = 3  # of the types of tokens in a GGUF file


def make_tokenizer(path):
    fields = GGUFReader(model).fields
    read = lambda key: [fields["tokenizer.ggml." + key].parts[i] for i in fields["tokenizer.ggml." + key].data]
    tokens, merges = ([bytes(x).decode() for x in read(key)] for key in ("tokens", "merges"))
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, read("token_type")) if int(kind[0]) == CONTROL]
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>").save_pretrained(path)
    return made


def program(*arguments):
    given = [swarm, *arguments, "--model", model, "--local", "all"]
    return subprocess.run(given, check=True, capture_output=True, text=True).stdout


def write(name, content):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        file.write(content)
    return path


def write_task(name, kind, rows, **settings):
    rows = write(name + ".jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": rows}}, "test_split": "test"}
    write(name + ".yaml", json.dumps({**task, "output_type": kind, **settings}))


def scored_by_swarm_eval(ids):
    """The sum of the log-probabilities of all ids but the first."""
    scored = json.loads(program("eval", "--json", "--ids-file", write("ids.json", json.dumps(ids))))
    assert scored["tokens"] == len(ids) - 1
    return -scored["nll"] * scored["tokens"]


def evaluate(kind, path, task, **settings):
    arguments = {"model": "tiny", "base_url": url + path, "num_concurrent": 2, **settings}
    tasks = TaskManager(include_path=folder, include_defaults=False)
    done = lm_eval.simple_evaluate(
        model=kind, model_args=arguments, tasks=[task], task_manager=tasks, bootstrap_iters=0,
        apply_chat_template="chat" in kind,
    )
    return done["results"][task], done["samples"][task]


tokenizer = make_tokenizer(folder + "/tokenizer")
write_task("texts", "loglikelihood_rolling", [{"text": text} for text in TEXTS], doc_to_text="", doc_to_target="{{text}}",
           metric_list=[{"metric": "byte_perplexity"}])
result, _ = evaluate("local-completions", "/v1/completions", "texts", tokenizer=folder + "/tokenizer")
nll = 0
for text in TEXTS:  # the harness puts the token that ends a text before each
    nll -= scored_by_swarm_eval([tokenizer.token_to_id("<|im_end|>"), *tokenizer.encode(text).ids])
perplexity = math.exp(nll / sum(len(text.encode()) for text in TEXTS))
print("byte perplexity:", result["byte_perplexity,none"], "by swarm eval:", perplexity)
assert math.isclose(result["byte_perplexity,none"], perplexity, rel_tol=1e-9)

# What most tasks are made of: which of some choices is the likeliest behind a question.
rows = [{"question": question, "choices": choices} for question, choices in CHOICES]
write_task("choices", "multiple_choice", rows, doc_to_text="{{question}}", doc_to_choice="{{choices}}", doc_to_target=0,
           metric_list=[{"metric": "acc"}])
result, samples = evaluate("local-completions", "/v1/completions", "choices", tokenizer=folder + "/tokenizer")
right = 0
for sample in samples:
    question, choices = sample["doc"]["question"], sample["doc"]["choices"]
    alone = scored_by_swarm_eval(tokenizer.encode(question).ids)
    expected = [scored_by_swarm_eval(tokenizer.encode(f"{question} {choice}").ids) - alone for choice in choices]
    got = [float(score) for ((score, _),) in sample["resps"]]
    assert len(got) == len(expected) and all(math.isclose(a, b, abs_tol=1e-4) for a, b in zip(got, expected)), (got, expected)
    right += expected.index(max(expected)) == 0
print("choices:", result["acc,none"], "right by swarm eval:", right, "of", len(CHOICES))
assert result["acc,none"] == right / len(CHOICES) and 0 < right

answers = [
    program("generate", "--chat", "--prompt", question, "--max-tokens", "12", "--temperature", "0").strip()
    for question in QUESTIONS
]
rows = [{"question": question, "answer": answer} for question, answer in zip(QUESTIONS, answers)]
write_task("questions", "generate_until", rows, doc_to_text="{{question}}", doc_to_target="{{answer}}",
           generation_kwargs={"until": ["never"], "max_gen_toks": 12, "temperature": 0},
           metric_list=[{"metric": "exact_match", "ignore_case": False}])
result, _ = evaluate("local-chat-completions", "/v1/chat/completions", "questions", tokenizer_backend=None)
print("exact matches:", result["exact_match,none"], answers)
assert result["exact_match,none"] == 1
