"""The model of transformers: generation, sessions, batches, the loss, pipelines, Trainer, PEFT's prompt tuning, and programs
that were written for Petals."""

import inspect
import json
import shutil
import subprocess
import warnings

import numpy as np
import pytest

import swarmnode
from conftest import BUILD, F32, KV
from test_blocks import close, golden
from test_examples import run as run_example

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("swarmnode.hf")

IDS = [1, 17, 42, 99, 3, 250, 11, 7]


@pytest.fixture(scope="module")
def distributed(swarm, tiny_path):
    return hf.DistributedModelForCausalLM.from_pretrained(tiny_path, swarm=swarm, **KV)


def test_generate_gives_the_tokens_of_the_swarm(distributed, tiny):
    expected = tiny.generate(IDS, max_tokens=10, ignore_eos=True).ids
    out = distributed.generate(torch.tensor([IDS]), max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert out[0].tolist() == IDS + expected


def test_only_new_tokens_are_computed(distributed):
    distributed._timelines.close()
    distributed.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, eos_token_id=None)
    (timeline,) = distributed._timelines._kept
    before = timeline.session.position
    distributed.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert distributed._timelines._kept == [timeline] and timeline.session.position == before == len(IDS) + 4


def test_a_session_of_generate_takes_what_is_new(distributed, tiny):
    greedy = {"do_sample": False, "eos_token_id": None}
    whole = distributed.generate(torch.tensor([IDS]), max_new_tokens=9, **greedy)[0].tolist()
    with distributed.inference_session(max_length=64) as session:
        with pytest.raises(swarmnode.Refused, match="no tokens yet"):
            distributed.generate(None, max_new_tokens=1, session=session)
        assert distributed.generate(torch.tensor([IDS[:3]]), max_new_tokens=1, session=session, **greedy)[0, :3].tolist() == IDS[:3]
        session.position = 3  # what was generated is another token than the next one of IDS
        first = distributed.generate(torch.tensor([IDS[3:]]), max_new_tokens=4, session=session, **greedy)
        assert first[0].tolist() == whole[3 : len(IDS) + 4] and session.position == len(IDS) + 4
        made = [distributed.generate(None, max_new_tokens=1, session=session, **greedy) for _ in range(5)]
        assert torch.cat(made, 1)[0].tolist() == whole[-5:] and session.output_ids[0].tolist() == whole
        assert [t.session.position for t in session._kept] == [len(whole) - 1]
        with pytest.raises(swarmnode.Refused, match="batch of 1"):
            distributed.generate(torch.tensor([IDS, IDS]), max_new_tokens=1, session=session)
    with distributed.inference_session(max_length=len(IDS)) as session, pytest.raises(swarmnode.Refused, match=str(len(IDS))):
        distributed.generate(torch.tensor([IDS]), max_new_tokens=4, session=session, **greedy)


def test_a_pipeline_generates(distributed, tiny, tiny_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_path)
    pipe = transformers.pipeline("text-generation", model=distributed, tokenizer=tokenizer)
    expected = tiny.generate(tiny.tokenizer.encode("hello there"), max_tokens=8, ignore_eos=True).ids
    (made,) = pipe("hello there", max_new_tokens=8, do_sample=False, eos_token_id=None, return_tensors=True)
    assert made["generated_token_ids"][-8:] == expected


def test_trainer_trains(tiny_path, nodes, tmp_path):
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = hf.DistributedModelForCausalLM.from_pretrained(tiny_path, initial_peers=nodes.addresses, tuning_mode="ptune", pre_seq_len=4, **KV)
    rows = [{"input_ids": torch.tensor(IDS), "labels": torch.tensor(IDS)}] * 2
    given = transformers.TrainingArguments(str(tmp_path), max_steps=6, learning_rate=0.05, per_device_train_batch_size=1,
                                           logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
                                           lr_scheduler_type="constant", max_grad_norm=0)
    trainer = transformers.Trainer(model=model, args=given, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.1


def test_trainer_saves_resumes_and_evaluates(tiny_path, nodes, tmp_path, monkeypatch):
    pytest.importorskip("accelerate")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # an old Trainer saves what a new PyTorch does not load otherwise
    rows = [{"input_ids": torch.tensor(ids), "labels": torch.tensor(ids)} for ids in (IDS, IDS[::-1], IDS[2:], [5, *IDS])]
    strategy = "eval_strategy" if "eval_strategy" in inspect.signature(transformers.TrainingArguments).parameters else "evaluation_strategy"

    def trainer(folder):
        model = hf.DistributedModelForCausalLM.from_pretrained(tiny_path, initial_peers=nodes.addresses, method="lora", rank=2, **KV)
        given = transformers.TrainingArguments(str(folder), max_steps=6, learning_rate=0.02, per_device_train_batch_size=1, logging_steps=1,
                                               per_device_eval_batch_size=1, save_steps=3, eval_steps=3, report_to=[], disable_tqdm=True,
                                               **{strategy: "steps"})
        return transformers.Trainer(model=model, args=given, train_dataset=rows, eval_dataset=rows[:2])

    def history(of, key):
        return [entry[key] for entry in of.state.log_history if key in entry]

    whole, resumed = trainer(tmp_path / "whole"), trainer(tmp_path / "resumed")
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole/checkpoint-3"))  # as after a kill: all others are new
    assert len(history(whole, "loss")) == 6 and history(resumed, "loss") == history(whole, "loss")
    assert history(resumed, "eval_loss") == history(whole, "eval_loss") and history(whole, "eval_loss")[1] < history(whole, "eval_loss")[0]
    assert torch.equal(resumed.model.blocks.values, whole.model.blocks.values)
    for parameter, state in resumed.optimizer.state.items():  # it is where its parameter is
        assert state["exp_avg"].device == parameter.device and state["exp_avg"].dtype == parameter.dtype and state["exp_avg"].any()
    by_hand = [resumed.model(r["input_ids"][None], labels=r["labels"][None]).loss.item() for r in rows[:2]]
    assert abs(resumed.evaluate()["eval_loss"] - sum(by_hand) / 2) < 1e-6
    again = hf.DistributedModelForCausalLM.from_pretrained(tmp_path / "resumed/checkpoint-6", initial_peers=nodes.addresses, **KV)
    assert torch.equal(again.blocks.values, whole.model.blocks.values)


def petals(name, *arguments, lines=""):
    return run_example(f"../../python/tests/petals/{name}", *arguments, lines=lines)


def test_a_program_for_petals_generates_text(usual, tiny_path, usual_nodes):
    ids = usual.tokenizer.encode("A cat sat")
    out = petals("generation.py", tiny_path, "A cat sat", *usual_nodes.addresses)
    assert out == "A cat sat" + usual.generate(ids, max_tokens=12).text + "\n"


def test_a_program_for_petals_chats(usual, tiny_path, usual_nodes):
    out = petals("chat.py", tiny_path, usual_nodes.addresses[0], lines="one\ntwo\n").splitlines()
    with usual.session() as session:
        for line, said in zip(("one\n", "two\n"), out):
            more = usual.tokenizer.encode(f"Human: {line}AI:", begins=session.position == 0)
            made = session.generate([*session.tokens, *more], max_tokens=10, ignore_eos=True).ids
            assert said.split() == [*map(str, made), str(len(session.tokens))]


@pytest.mark.parametrize("mode", ["ptune", "deep_ptune"])
def test_a_program_for_petals_tunes_a_prompt(tiny_path, usual_nodes, mode):
    *losses, said = petals("prompt_tuning.py", tiny_path, mode, "A cat sat.", *usual_nodes.addresses).splitlines()
    assert len(losses) == 20 and float(losses[-1]) < float(losses[0]) - 1
    made, learned = json.loads(f"[{said.replace('] [', '],[')}]")
    assert made[:2] == learned[:2]  # and generate() has the tuned prompt


def test_generate_with_a_prompt_of_embeddings_computes_only_what_is_new(tiny_path, nodes):
    model = hf.DistributedModelForCausalLM.from_pretrained(tiny_path, initial_peers=nodes.addresses[0], tuning_mode="ptune", pre_seq_len=3, **KV)
    row, rows = list(IDS), torch.tensor([IDS, [0, 0, *IDS[2:]]])
    mask = torch.tensor([[1] * 8, [0] * 2 + [1] * 6])
    out = model.generate(rows, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None)
    while len(row) < len(IDS) + 5:
        row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))  # a forward pass of the whole row
    assert out[0].tolist() == row
    alone = model.generate(rows[1:, 2:], max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert out[1, 8:].tolist() == alone[0, 6:].tolist()
    assert [len(t.row) for t in model._timelines._kept] == [6 + 4, 8 + 4]  # two timelines: the row alone continued its own


TUNED = [{"method": "lora", "rank": 3, "targets": "q,v,down"}, {"tuning_mode": "ptune", "pre_seq_len": 3},
         {"tuning_mode": "deep_ptune", "pre_seq_len": 3}]


def tuned(path, given, **more):
    """A model whose tuned values say something."""
    model = hf.DistributedModelForCausalLM.from_pretrained(path, **given, **more, **KV)
    change(model, 1)
    return model


def change(model, seed):
    for p in model.parameters():
        if p.requires_grad:
            p.data.normal_(std=0.2, generator=torch.Generator().manual_seed(seed))


def greedy(model, n=5):
    """The most likely tokens by forward passes of the whole row."""
    row = list(IDS)
    while len(row) < len(IDS) + n:
        row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))
    return row


@pytest.fixture
def computed(monkeypatch):
    """How many tokens each call of a session computed."""
    rows, append = [], swarmnode.Session._append
    monkeypatch.setattr(swarmnode.Session, "_append", lambda self, ids, logits: (rows.append(len(ids)), append(self, ids, logits)))
    return rows


@pytest.mark.parametrize("given", TUNED)
def test_generate_with_what_is_tuned_computes_each_token_once(tiny_path, swarm, distributed, computed, given):
    model = tuned(tiny_path, given, swarm=swarm)
    asked = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}
    made = model.generate(torch.tensor([IDS]), **asked)[0].tolist()
    assert [n for n in computed if n] == [len(IDS) - 1, 1, 1, 1, 1, 1]  # a step for each token, over the nodes
    assert made == greedy(model) and made != greedy(distributed)
    with model.inference_session(max_length=64) as session:
        assert model.generate(torch.tensor([IDS]), session=session, **asked)[0].tolist() == made
        change(model, 2)  # training goes on
        again = greedy(model)
        assert again != made and model.generate(torch.tensor([IDS]), **asked)[0].tolist() == again
        session.position = len(IDS)
        assert model.generate(None, session=session, **asked)[0].tolist() == again[len(IDS):]


@pytest.mark.parametrize("given", TUNED)
def test_what_save_pretrained_writes_opens_everywhere(tiny, tiny_path, swarm, nodes, tmp_path, given):
    model, ids = tuned(tiny_path, given, swarm=swarm), torch.tensor([IDS])
    model.save_pretrained(tmp_path)
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) < 80_000  # neither blocks nor embedding
    again = hf.DistributedModelForCausalLM.from_pretrained(tmp_path, swarm=swarm, **KV)
    logits = model(ids).logits.detach()
    assert torch.equal(again(ids).logits, logits)
    with tiny.session(adapter=swarmnode.Adapter(tiny, tmp_path)) as session:
        assert np.array_equal(session.step(IDS), logits[0].numpy())
    (tmp_path / "ids").write_text(json.dumps(IDS))
    done = subprocess.run([BUILD / "swarm", "generate", *F32, "--model", tiny_path, "--join", nodes.addresses[0], "--adapter", tmp_path, "--ids-file",
                           tmp_path / "ids", "--max-tokens", "5", "--ignore-eos", "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and json.loads(done.stdout)["ids"] == greedy(model)[len(IDS):], done.stderr
    if given.get("tuning_mode") != "deep_ptune":
        peft = pytest.importorskip("peft")
        base = json.loads((tmp_path / "adapter_config.json").read_text())["base_model_name_or_path"]
        plain = transformers.AutoModelForCausalLM.from_pretrained(base, torch_dtype=torch.float32)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*(missing|unexpected).*")
            theirs = peft.PeftModel.from_pretrained(plain, tmp_path).eval()
        assert close(logits[0], theirs(ids, attention_mask=torch.ones_like(ids)).logits[0, -len(IDS):].detach().numpy())


def test_what_is_not_tuned_is_saved_as_its_model(distributed, swarm, tmp_path):
    distributed.save_pretrained(tmp_path)
    again = hf.DistributedModelForCausalLM.from_pretrained(tmp_path, swarm=swarm, **KV)
    assert torch.equal(again(torch.tensor([IDS])).logits, distributed(torch.tensor([IDS])).logits)
    assert not (tmp_path / "adapter_config.json").exists()
    with pytest.raises(swarmnode.Refused, match="AutoDistributedModelForCausalLM"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_tuned_folder_fits_its_model_alone(tiny_path, tmp_path):
    tuned(tiny_path, TUNED[0]).save_pretrained(tmp_path / "tuned")
    moved = shutil.copytree(tiny_path, tmp_path / "moved")
    opens = hf.DistributedModelForCausalLM.from_pretrained
    assert opens(tmp_path / "tuned", base_model=moved).blocks.blocks.option("rank") == 3
    with pytest.raises(swarmnode.Refused, match="leave out method"):
        opens(tmp_path / "tuned", tuning_mode="ptune")
    other = bytearray((moved / "model.safetensors").read_bytes())
    other[-3] ^= 1  # of the last norm
    (moved / "model.safetensors").write_bytes(other)
    with pytest.raises(swarmnode.Refused, match="other weights"):
        opens(tmp_path / "tuned", base_model=moved)
    config = json.loads((tmp_path / "tuned/config.json").read_text())
    (tmp_path / "tuned/config.json").write_text(json.dumps({**config, "tuning": {**config["tuning"], "rank": 4}}))
    with pytest.raises(swarmnode.Refused, match="does not have the values"):
        opens(tmp_path / "tuned")


def test_rows_of_a_padded_batch_are_alone(distributed):
    rows = [IDS, IDS[:5]]
    alone = [distributed.generate(torch.tensor([r]), max_new_tokens=6, do_sample=False, eos_token_id=None)[0, len(r):].tolist() for r in rows]
    ids = torch.tensor([IDS, [0, 0, 0, *IDS[:5]]])
    mask = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
    out = distributed.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert out[:, 8:].tolist() == alone
    both = distributed(ids, attention_mask=mask).logits
    assert close(both[1, 3:].detach(), distributed(torch.tensor([IDS[:5]])).logits[0].detach().numpy(), 1e-6)


def test_the_loss_is_the_references(distributed):
    ids = torch.from_numpy(golden("input_ids", np.int64).copy())[None]
    out = distributed(ids, labels=ids)
    assert abs(out.loss.item() - golden("loss").item()) < 1e-5 and close(out.logits[0].detach(), golden("logits"))
    accumulated = distributed(ids, labels=ids, num_items_in_batch=2 * (ids.numel() - 1))  # of Trainer, over two batches
    assert abs(2 * accumulated.loss.item() - out.loss.item()) < 1e-5


def test_prompt_tuning_of_peft_learns(distributed, tiny, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(distributed, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    ids = torch.tensor([IDS])
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    model.save_pretrained(tmp_path, safe_serialization=True)  # by PEFT
    with torch.no_grad(), tiny.session(adapter=swarmnode.Adapter(tiny, tmp_path)) as session:
        assert close(session.step(IDS), model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -len(IDS):].numpy(), 1e-6)
