"""Training of tiny models: what the loss sees, what lies beside the weights, and how a stopped training goes on."""

from __future__ import annotations

import json
import math
import resource
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import scoring_models

from blendfilter.errors import BadArgument, BadData, EmptyData, RunLocked, RunMismatch, WorkFailed
from blendfilter.lm.checkpoints import checkpoint_of, trained_on
from blendfilter.text import question_digest
from blendfilter.training.examples import IGNORED, Example, tokenised
from blendfilter.training.recipes import alone_in, read_recipe
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.trainer import _batches, train_model

pytest.importorskip("peft", reason="training needs the extra [train]")

SMALL = TrainingSettings(batch_size=4, epochs=2, learning_rate=1e-2)


def examples(n: int = 10) -> list[Example]:
    """Prompts and targets of several lengths."""
    return [
        Example(f"Question: which island is number {at}?\nAnswer:", " of the sea" * (1 + at % 3), f"which is {at}?")
        for at in range(n)
    ]


def loaded(folder: Path) -> Any:
    from blendfilter.lm.checkpoints import open_checkpoint

    return open_checkpoint(folder, device="cpu")


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()]


def without_dropout(model: Path, copy: Path) -> Path:
    """The model, whose training reads as its use does."""
    shutil.copytree(model, copy)
    config = json.loads((copy / "config.json").read_text())
    rates = {name: 0.0 for name in config if "drop" in name}
    (copy / "config.json").write_text(json.dumps(config | rates))
    return copy


@pytest.mark.parametrize("model", [scoring_models.llama, scoring_models.gpt2, scoring_models.t5, scoring_models.bart])
def test_loss_is_the_mean_over_target_and_end_mark_whatever_else_is_in_the_batch(model: Any, tmp_path: Path) -> None:
    """The first logged loss against the same examples, each read alone by the library's own loss, weighted by the
    number of its target tokens."""
    import torch

    rows, settings = examples(5), TrainingSettings(batch_size=5, epochs=1)
    base = without_dropout(model(), tmp_path / "base")
    one = loaded(base)
    total = count = 0.0
    with torch.inference_mode():
        for row in rows:
            made = tokenised(one.tokenizer, row, settings, seq2seq=one.config.is_encoder_decoder)
            assert made.target[-1] == one.tokenizer.eos_token_id
            if one.config.is_encoder_decoder:
                loss = one.model(torch.tensor([made.prompt]), labels=torch.tensor([made.target])).loss
            else:
                ids = torch.tensor([[*made.prompt, *made.target]])
                labels = torch.tensor([[*[IGNORED] * len(made.prompt), *made.target]])
                loss = one.model(ids, labels=labels).loss
            total, count = total + float(loss) * len(made.target), count + len(made.target)
    train_model(base, rows, tmp_path / "out", settings, device="cpu", micro_tokens=60)
    assert losses(tmp_path / "out")[0] == pytest.approx(total / count, rel=1e-4)


def test_learned_adapter_lies_beside_its_recipe_and_loads_on_its_base(tmp_path: Path) -> None:
    base, out = scoring_models.llama(), tmp_path / "out"
    trained = train_model(base, examples(), out, SMALL, recipe={"part": "test"}, device="cpu")
    recipe = read_recipe(out)
    assert recipe == trained.recipe
    assert recipe["part"] == "test"
    assert recipe["base"]["name"] == str(base)
    assert recipe["settings"]["learning_rate"] == 1e-2
    assert recipe["result"]["steps"] == 6
    assert recipe["result"]["method"] == "lora"
    assert losses(out)[-1] < losses(out)[0]
    assert len(trained_on(out)) == 10
    assert not (tmp_path / "out.partial").exists()
    adapter = json.loads((out / "adapter_config.json").read_text())
    assert adapter["base_model_name_or_path"] == str(base)
    assert "lm_head" not in adapter["target_modules"]
    from peft import PeftModel

    PeftModel.from_pretrained(loaded(base).model, out)
    assert (out / "tokenizer.json").exists()


@pytest.mark.parametrize(("model", "method"), [(scoring_models.t5, "full"), (scoring_models.llama, "lora")])
def test_a_model_trained_on_top_of_another_knows_the_questions_of_both(
    model: Callable[[], Path], method: str, tmp_path: Path
) -> None:
    """A whole model is its own base: nothing leads back to what it was made of. An adapter stands on the first one."""
    settings = TrainingSettings(method=method, epochs=1, batch_size=1)
    one = train_model(model(), examples(2)[:1], tmp_path / "one", settings, device="cpu").folder
    two = train_model(one, examples(2)[1:], tmp_path / "two", settings, device="cpu").folder
    assert trained_on(one) == {question_digest("which is 0?")}
    assert (two / "questions.txt").read_text().split() == sorted(trained_on(two))
    assert trained_on(two) == {question_digest("which is 0?"), question_digest("which is 1?")}
    base = checkpoint_of(two).base
    assert (base and base.path) == (one if method == "lora" else None)
    loaded(two)


def test_finished_model_is_not_trained_again_and_another_recipe_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    train_model(scoring_models.gpt2(), examples(), out, SMALL, device="cpu")
    before = (out / "adapter_model.safetensors").stat().st_mtime_ns
    train_model(scoring_models.gpt2(), examples(), out, SMALL, device="cpu")
    assert (out / "adapter_model.safetensors").stat().st_mtime_ns == before
    with pytest.raises(RunMismatch, match=r"settings.seed was 0, now 1"):
        train_model(scoring_models.gpt2(), examples(), out, SMALL.but(seed=1), device="cpu")
    with pytest.raises(RunMismatch, match=r"examples.n was 10, now 9"):
        train_model(scoring_models.gpt2(), examples(9), out, SMALL, device="cpu")


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadArgument, match="holds no trained model"):
        train_model(scoring_models.gpt2(), examples(), tmp_path, SMALL, device="cpu")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_prompt_over_the_cap_is_left_out_and_a_long_target_is_cut_without_an_end_mark(tmp_path: Path) -> None:
    rows = [
        *examples(3),
        Example("Knowledge: " + "the sea " * 90 + "\nAnswer:", "yes"),
        Example("Say:", "the sea " * 90),
    ]
    settings = TrainingSettings(batch_size=4, epochs=1, max_input_tokens=60, max_target_tokens=20)
    one = loaded(scoring_models.gpt2())
    cut = tokenised(one.tokenizer, rows[-1], settings)
    assert len(cut.target) == 20
    assert one.tokenizer.eos_token_id not in cut.target
    trained = train_model(scoring_models.gpt2(), rows, tmp_path / "out", settings, device="cpu")
    assert trained.recipe["result"]["trained_on"] == 4
    assert trained.recipe["result"]["left_out_too_long"] == 1
    assert trained.recipe["result"]["targets_cut"] == 1
    with pytest.raises(EmptyData, match="longer than 2 tokens"):
        train_model(scoring_models.gpt2(), rows, tmp_path / "none", TrainingSettings(max_input_tokens=2), device="cpu")


def test_example_longer_than_the_context_of_the_base_is_left_out(tmp_path: Path) -> None:
    """256 tokens, prompt and target together; an encoder-decoder has as many for each."""
    rows = [*examples(3), Example("Knowledge: " + "the sea " * 40 + "\nAnswer:", "the sea " * 40)]
    for model, left_out in ((scoring_models.gpt2(), 0), (scoring_models.gpt2(128), 1), (scoring_models.bart(), 0)):
        out = tmp_path / model.name
        made = train_model(model, rows, out, SMALL.but(epochs=1), device="cpu").recipe["result"]
        assert made["left_out_too_long"] == left_out, model.name


def test_empty_target_is_the_end_mark_alone() -> None:
    one = loaded(scoring_models.llama())
    assert tokenised(one.tokenizer, Example("Context:", ""), TrainingSettings()).target == (one.tokenizer.eos_token_id,)


def test_target_continues_the_prompt_as_one_text() -> None:
    """Behind a cue it begins with a space, as the model would write it."""
    one = loaded(scoring_models.gpt2())
    made = tokenised(one.tokenizer, Example("Answer:", "the north"), TrainingSettings())
    assert one.tokenizer.decode([*made.prompt, *made.target[:-1]]) == "Answer: the north"


def test_no_example_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmptyData):
        train_model(scoring_models.gpt2(), [], tmp_path / "out", SMALL)


def test_batch_is_divided_until_a_part_fits_the_tokens() -> None:
    """32 examples of 100 tokens: 3,200 in one go, 800 by four."""
    assert _batches([100] * 40, 32, 10_000) == (1, 32)
    assert _batches([100] * 40, 32, 800) == (4, 8)
    assert _batches([5_000] * 40, 32, 800) == (32, 1)


def test_each_example_is_read_once_an_epoch_and_those_of_a_batch_by_length() -> None:
    from blendfilter.training.loop import ShuffledRows

    rows = ShuffledRows([{"input_ids": [0] * at} for at in range(17)], 8, seed=1)
    lengths = [len(rows[at]["input_ids"]) for at in range(17)]
    assert sorted(lengths) == [*range(17)]
    assert lengths[:8] == sorted(lengths[:8]) != [*range(8)]
    assert lengths[8:16] == sorted(lengths[8:16])
    rows.set_epoch(1)
    assert [len(rows[at]["input_ids"]) for at in range(17)] != lengths


def test_fewer_tokens_at_a_time_are_the_same_batch(tmp_path: Path) -> None:
    """Batches of 8 and of the 2 that are left, in one go or by single examples."""
    import torch
    from safetensors.torch import load_file

    settings = SMALL.but(batch_size=8)
    for name, tokens in (("whole", 10_000), ("single", 1)):
        train_model(scoring_models.llama(), examples(), tmp_path / name, settings, device="cpu", micro_tokens=tokens)
    assert losses(tmp_path / "single") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    one, other = (load_file(tmp_path / name / "adapter_model.safetensors") for name in ("whole", "single"))
    for name, weights in one.items():
        torch.testing.assert_close(other[name], weights, rtol=1e-2, atol=1e-4)


class Stopped(Exception):
    """Somebody stops the training."""


@pytest.mark.parametrize(
    ("model", "save_every", "newest"),
    [(scoring_models.gpt2, 3, 6), (scoring_models.t5, 3, 6), (scoring_models.t5, 4, 4)],
)
def test_stopped_training_goes_on_to_the_same_weights(model: Any, save_every: int, newest: int, tmp_path: Path) -> None:
    """With dropout, steps after the last checkpoint, which is at an epoch's end or within one: the random state goes on
    too.

    12 steps, 3 an epoch, the third of two examples, one read at a time; it is stopped at step 8, of the third epoch.
    """
    settings = SMALL.but(epochs=4, lora_dropout=0.1)
    train_model(model(), examples(), tmp_path / "whole", settings, device="cpu", micro_tokens=1)

    def stop(phase: str, done: int, total: int | None = None) -> None:
        if done == 8:
            raise Stopped

    with pytest.raises(Stopped):
        train_model(model(), examples(), tmp_path / "out", settings, device="cpu", save_every=save_every,
                    micro_tokens=1, progress=stop)  # fmt: skip
    assert not (tmp_path / "out").exists()
    assert [each.name for each in (tmp_path / "out.partial").glob("checkpoint-*")] == [f"checkpoint-{newest}"]
    with pytest.raises(RunMismatch, match=r"settings.epochs was 4, now 5"):
        train_model(model(), examples(), tmp_path / "out", settings.but(epochs=5), device="cpu")
    seen = list[int]()
    trained = train_model(
        model(), examples(), tmp_path / "out", settings, device="cpu", micro_tokens=1,
        progress=lambda _, done, __: seen.append(done),
    )  # fmt: skip
    assert seen[1:] == [*range(newest + 1, 13)]
    for name in (*weights_in(tmp_path / "whole"), "losses.jsonl"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert trained.recipe["result"]["steps"] == 12


def weights_in(folder: Path) -> list[str]:
    found = [each.name for each in folder.glob("*.safetensors")]
    assert found
    return found


def test_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    """One whose mark was never written; steps are numbers, not texts."""
    from blendfilter.training.loop import newest_whole, remove_torn

    for step in (6, 9, 12, 15):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        if step < 15:
            (folder / "whole.json").write_text('{"seconds": 1}')
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-12"
    remove_torn(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-6", "checkpoint-9", "checkpoint-12"}


@pytest.mark.parametrize("model", [scoring_models.llama, scoring_models.t5])
def test_activations_that_are_computed_again_change_no_step(model: Any, tmp_path: Path) -> None:
    base = without_dropout(model(), tmp_path / "base")
    for name, again in (("kept", False), ("again", True)):
        train_model(base, examples(), tmp_path / name, SMALL, device="cpu", gradient_checkpointing=again)
    assert losses(tmp_path / "again") == pytest.approx(losses(tmp_path / "kept"), rel=1e-4)


def test_half_precision_learns_what_full_precision_learns(tmp_path: Path) -> None:
    """The adapter's weights stay in 32 bits."""
    for name in ("float32", "bf16"):
        train_model(scoring_models.llama(), examples(), tmp_path / name, SMALL.but(precision=name), device="cpu")
    assert losses(tmp_path / "bf16") == pytest.approx(losses(tmp_path / "float32"), rel=0.05)
    from safetensors.torch import load_file

    assert {str(each.dtype) for each in load_file(tmp_path / "bf16" / "adapter_model.safetensors").values()} == {
        "torch.float32"
    }


def test_of_trainings_that_begin_at_once_one_trains(tmp_path: Path) -> None:
    """Eight that all found nothing in the folder: none replaces the file that another has locked."""
    for folder in (tmp_path / f"{at}.partial" for at in range(5)):
        together = Barrier(8)

        def trains(folder: Path = folder, together: Barrier = together) -> bool:
            together.wait()
            try:
                with alone_in(folder, {"part": "test"}, folder.with_suffix(""), lambda: True):
                    together.wait()
                    return True
            except RunLocked:
                together.wait()
                return False

        with ThreadPoolExecutor(8) as pool:
            assert sum(each.result() for each in [pool.submit(trains) for _ in range(8)]) == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "qlora"}, "method is 'qlora': input should be 'lora' or 'full'"),
        ({"schedule": "sawtooth"}, "schedule is 'sawtooth'"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"lora_dropout": 1.0}, "lora_dropout is 1.0: input should be less than 1"),
        ({"seed": 2**32}, "seed is 4294967296: input should be less than 4294967296"),
    ],
)
def test_setting_that_cannot_be_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words):
        TrainingSettings(**settings)


def test_what_is_refused_before_the_first_step_stands_in_nobodys_way(tmp_path: Path) -> None:
    model, out, short = scoring_models.gpt2(), tmp_path / "out", SMALL.but(max_input_tokens=2)
    with pytest.raises(EmptyData, match="raise the cap"):
        train_model(model, examples(), out, short, device="cpu")
    assert list(tmp_path.iterdir()) == []
    assert train_model(model, examples(2), out, SMALL, device="cpu").folder == out


@pytest.mark.parametrize("out", ["", "a/.."])
def test_a_folder_without_a_name_is_refused(out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument, match="names no new folder"):
        train_model(scoring_models.gpt2(), examples(), out, SMALL, device="cpu")


def test_a_folder_under_home_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    monkeypatch.chdir(tmp_path)
    done = train_model(scoring_models.gpt2(), examples(2), "~/out", SMALL, device="cpu", save_every=1)
    assert done.folder == tmp_path / "elsewhere" / "out"
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]


@pytest.mark.parametrize("device", ["cuda", "gpu"])
def test_device_that_is_not_there_is_refused(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(BadArgument, match=r"device is 'gpu'|torch sees 0 GPUs"):
        train_model(scoring_models.gpt2(), examples(), tmp_path / "out", SMALL, device=device)


def test_chat_template_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="no chat template"):
        train_model(scoring_models.gpt2(), examples(), tmp_path / "out", SMALL.but(chat=True), device="cpu")


def test_chat_template_that_refuses_is_one_line(tmp_path: Path) -> None:
    base = shutil.copytree(scoring_models.gpt2(), tmp_path / "base")
    known = json.loads((base / "tokenizer_config.json").read_text())
    (base / "tokenizer_config.json").write_text(json.dumps(known | {"chat_template": "{% if %}"}))
    with pytest.raises(BadData, match=r"an example cannot be written out: .* raw prompts"):
        train_model(base, examples(), tmp_path / "out", SMALL, device="cpu")
    raw = SMALL.but(chat=False, epochs=1)
    assert train_model(base, examples(4), tmp_path / "out", raw, device="cpu").recipe["result"]["steps"] == 1


def test_training_that_diverges_is_not_finished(tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match=r"the loss is not a number from step \d on: lower learning_rate"):
        train_model(scoring_models.gpt2(), examples(), tmp_path / "out", SMALL.but(learning_rate=1e30), device="cpu")
    assert not (tmp_path / "out").exists()
    assert all(map(math.isfinite, losses(tmp_path / "out.partial")))


def test_stopped_after_the_last_step_only_what_is_left_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the files are put together: the last checkpoint has all of it."""
    from blendfilter.training import trainer

    train_model(scoring_models.gpt2(), examples(), tmp_path / "whole", SMALL, device="cpu")

    def stop(*_: Any) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_questions", stop)
        with pytest.raises(Stopped):
            train_model(scoring_models.gpt2(), examples(), tmp_path / "out", SMALL, device="cpu")
    assert not (tmp_path / "out").exists()
    seen = list[int]()
    train_model(
        scoring_models.gpt2(), examples(), tmp_path / "out", SMALL, device="cpu",
        progress=lambda _, done, __: seen.append(done),
    )  # fmt: skip
    assert seen == [0]
    for name in ("adapter_model.safetensors", "losses.jsonl", "questions.txt"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes: larger ones fail as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_called_that_and_with_more_room_the_same_call_ends_well(tmp_path: Path) -> None:
    """The optimiser's state is the largest file of a checkpoint: the first one does not fit."""
    out, settings = tmp_path / "model", SMALL.but(epochs=1)
    begin = partial(train_model, scoring_models.llama(), examples(), out, settings, device="cpu", save_every=2)
    with pytest.raises(OSError, match="same command goes on") as raised, room_for(120_000):
        begin()
    assert raised.value.filename == str(tmp_path / "model.partial")
    assert str(raised.value.strerror).startswith(("No space left on device", "File too large"))
    assert not [*(tmp_path / "model.partial").glob("*/whole.json")]
    begin()
    assert len(losses(out)) == 3
    assert not (tmp_path / "model.partial").exists()
