"""Models of Hugging Face by their names: folders, adapters on a base, GGUF files, and what is none of them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import scoring_models as made
from checkpoints import classifier

from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadArgument, BadData, MissingExtra, MissingFile
from blendfilter.lm import checkpoints
from blendfilter.lm.checkpoints import (
    LanguageModel,
    check_files,
    check_sentencepiece,
    checkpoint_of,
    fingerprint,
    open_checkpoint,
    open_tokenizer,
    prompt_ids,
)
from blendfilter.lm.scoring import scorer

torch = pytest.importorskip("torch", reason="needs the extra [hf]")
pytest.importorskip("peft", reason="needs the extra [hf]")


TEMPLATE = (
    "{% for message in messages %}<|end|>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% if quiet %} (quietly){% endif %}{% endif %}"
)


def copied(kind: Callable[[], Path], to: Path, *, without: str = "", **config: Any) -> Path:
    """A copy of a made model, without a file, or with other words in its configuration."""
    shutil.copytree(kind(), to, ignore=shutil.ignore_patterns(without))
    known = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps(known | config))
    return to


def adapter(base: Path, to: Path, *, named: str | None = None, on: Any = "all-linear") -> Path:
    """A LoRA adapter on `base` whose weights are not 0, and that says `named` for its base."""
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loaded = open_checkpoint(base, device="cpu")
        how = peft.LoraConfig(r=4, target_modules=on, init_lora_weights=False)
        adapted = peft.get_peft_model(loaded.model, how)
        for name, weights in adapted.named_parameters():
            if "lora_" in name:
                weights.data.normal_(0, 0.5)
    adapted.save_pretrained(to)
    renamed(to, str(base) if named is None else named)
    return to


def renamed(folder: Path, base: str | None) -> None:
    """Let the adapter in `folder` name another base."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": base}))


def saved(loaded: LanguageModel, folder: Path) -> Path:
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder


def logits(name: Path) -> Any:
    """What a model thinks of three tokens."""
    loaded = open_checkpoint(name, device="cpu")
    with torch.inference_mode():
        return loaded.model(torch.tensor([[5, 6, 7]])).logits


class TestNames:
    def test_a_folder_a_name_with_its_prefix_and_one_of_the_hub(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import huggingface_hub

        folder = made.gpt2()
        assert checkpoint_of(folder).path == checkpoint_of(f"hf/{folder}").path == folder
        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: folder)
        assert checkpoint_of("hf/owner/name").path == folder

    def test_a_gguf_file_or_a_folder_with_one(self, tmp_path: Path) -> None:
        file = tmp_path / "model.gguf"
        file.write_bytes(b"GGUF")
        assert checkpoint_of(file).path == checkpoint_of(tmp_path).path == file
        assert checkpoint_of(file).is_gguf
        (tmp_path / "other.gguf").write_bytes(b"GGUF")
        with pytest.raises(BadData, match=r"holds 2 GGUF files: name one of them \(model.gguf"):
            checkpoint_of(tmp_path)

    @pytest.mark.parametrize("name", ["hf/nowhere", "./no/where", "models/absent.gguf"])
    def test_what_is_not_there_is_one_line(self, name: str) -> None:
        with pytest.raises(MissingFile, match=r"^no model"):
            checkpoint_of(name)

    def test_a_folder_without_a_model(self, tmp_path: Path) -> None:
        with pytest.raises(BadData, match=r"no model in .*: a Hugging Face folder has a config.json"):
            checkpoint_of(tmp_path)


class TestOtherKinds:
    @pytest.mark.parametrize("architecture", ["LlamaForSequenceClassification", "BertForMaskedLM", "T5EncoderModel"])
    def test_a_model_that_writes_nothing_by_its_name(self, architecture: str, tmp_path: Path) -> None:
        folder = copied(made.gpt2, tmp_path / "m", architectures=[architecture])
        with pytest.raises(BadData, match=rf"writes nothing \({architecture}\)"):
            open_checkpoint(folder)

    @pytest.mark.parametrize("kind", [made.gpt2, made.t5])
    def test_no_tokeniser(self, kind: Callable[[], Path], tmp_path: Path) -> None:
        """Left to itself, transformers makes one up, of a few marks."""
        folder = copied(kind, tmp_path / "m", without="tokenizer.json")
        with pytest.raises(BadData, match="no tokeniser in "):
            open_checkpoint(folder)

    def test_a_sentencepiece_model_alone_says_what_reads_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Left to itself, transformers takes it for a file of tiktoken's: "Error parsing line"."""
        monkeypatch.setitem(sys.modules, "sentencepiece", None)  # it is not installed
        folder = copied(made.t5, tmp_path / "m", without="tokenizer.json")
        (folder / "spiece.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02")  # its first piece
        line = r"in .*m is a SentencePiece model \(spiece.model\), .*: pip install sentencepiece protobuf"
        for open_ in (open_checkpoint, open_tokenizer, lambda found: check_files(checkpoint_of(found))):
            with pytest.raises(MissingExtra, match=line):
                open_(folder)
        nli = classifier(tmp_path / "nli", [0.0, 1.0], ["neutral", "entailment"])
        shutil.copy(folder / "spiece.model", nli)
        assert scorer("nli", nli).entailment([("It rains.", "It rains.")]), "a tokenizer.json is read before it"
        (nli / "tokenizer.json").unlink()
        with pytest.raises(MissingExtra, match=line.replace("m is", "nli is")):
            scorer("nli", nli).entailment([("It rains.", "It rains.")])
        (nli / "spiece.model").write_text("IQ== 0\nIg== 1\n")  # tiktoken's own
        check_sentencepiece(nli)


class TestDamaged:
    def test_a_gguf_file_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGXX" * 100)
        with pytest.raises(BadData, match=r"bad\.gguf cannot be loaded"):
            open_checkpoint(tmp_path / "bad.gguf", device="cpu")

    @pytest.mark.parametrize("header", ["[]", '{"weight": {"dtype": "F32"}}'])
    def test_weights_with_an_odd_header(self, header: str, tmp_path: Path) -> None:
        folder = copied(made.gpt2, tmp_path / "odd")
        next(folder.glob("*.safetensors")).write_bytes(len(header).to_bytes(8, "little") + header.encode())
        with pytest.raises(BadData, match="odd cannot be loaded"):
            open_checkpoint(folder, device="cpu")

    def test_code_that_comes_with_a_model_is_not_run_and_nobody_is_asked(self, tmp_path: Path) -> None:
        """As of the first Qwen."""
        own = {"model_type": "qwen", "architectures": ["QWenLMHeadModel"], "auto_map": {"AutoConfig": "own.Config"}}
        folder = copied(made.gpt2, tmp_path / "qwen", **own)
        (folder / "own.py").write_text("raise SystemExit('it was run')")
        with pytest.raises(BadData, match="comes with code of its own, which is never run here: have a server run it"):
            open_checkpoint(folder, device="cpu")

    def test_architectures_that_are_no_names(self, tmp_path: Path) -> None:
        """They say nothing of the model, so its weights are loaded as any."""
        folder = copied(made.gpt2, tmp_path / "odd", architectures=[3])
        check_files(checkpoint_of(folder))
        assert open_checkpoint(folder, device="cpu").model.config.model_type == "gpt2"

    def test_a_hub_that_answers_with_a_proxys_refusal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        hub = pytest.importorskip("huggingface_hub")

        def refused(*_: Any, **__: Any) -> None:
            raise httpx.ProxyError("403 Forbidden")

        monkeypatch.setattr(hub, "snapshot_download", refused)
        with pytest.raises(MissingFile, match=r"the hub did not give it \(403 Forbidden\)"):
            checkpoint_of("owner/name")


class TestAdapters:
    def test_one_is_merged_into_its_base(self, tmp_path: Path) -> None:
        base = made.llama()
        found = adapter(base, tmp_path / "adapter")
        loaded = open_checkpoint(found, device="cpu")
        assert type(loaded.model).__name__ == "LlamaForCausalLM"  # no layers beside the model's own
        assert not torch.allclose(logits(found), logits(base))
        assert loaded.tokenizer("the king")["input_ids"] == open_tokenizer(base)("the king")["input_ids"]
        assert torch.allclose(logits(saved(loaded, tmp_path / "whole")), logits(found), atol=1e-5)

    def test_an_encoder_decoder_too(self, tmp_path: Path) -> None:
        found = adapter(made.t5(), tmp_path / "adapter")
        assert type(open_checkpoint(found, device="cpu").model).__name__ == "T5ForConditionalGeneration"

    def test_a_base_that_was_moved_beside_it_is_found(self, tmp_path: Path) -> None:
        base = copied(made.gpt2, tmp_path / "bases" / "small")
        found = adapter(base, tmp_path / "adapter")
        renamed(found, "../bases/small")
        assert fingerprint(checkpoint_of(found).base or "") == fingerprint(base)
        (tmp_path / "bases").rename(tmp_path / "gone")
        (tmp_path / "gone" / "small").rename(tmp_path / "small")
        renamed(found, "/somewhere/else/small")
        assert checkpoint_of(found).base == checkpoint_of(tmp_path / "small")

    def test_no_base(self, tmp_path: Path) -> None:
        found = adapter(made.gpt2(), tmp_path / "adapter", named="/somewhere/else/large")
        with pytest.raises(MissingFile, match="was trained on /somewhere/else/large, which is not there: put that"):
            checkpoint_of(found)
        renamed(found, None)
        with pytest.raises(BadData, match="names no base"):
            checkpoint_of(found)

    @pytest.mark.parametrize("kind", [made.gpt2, lambda: made.llama(layers=3), lambda: made.llama(width=64)])
    def test_another_base_is_one_line(self, kind: Callable[[], Path], tmp_path: Path) -> None:
        """Other layers, more of them, larger ones."""
        found = adapter(made.llama(), tmp_path / "adapter", named=str(kind()), on=["q_proj", "v_proj"])
        with pytest.raises(BadData, match=r"does not fit the model in .*: it was trained on another one") as caught:
            open_checkpoint(found)
        assert "\n" not in str(caught.value)

    def test_a_base_of_the_same_shape_is_told_by_the_recipe(self, tmp_path: Path) -> None:
        right, wrong = copied(made.gpt2, tmp_path / "right"), copied(made.taught, tmp_path / "wrong")
        found = adapter(right, tmp_path / "adapter", named=str(wrong))
        recipe = {"format": 1, "base": {"name": str(wrong), "fingerprint": fingerprint(right)}}
        (found / "recipe.json").write_text(json.dumps(recipe))
        with pytest.raises(BadData, match=r"was trained on another model than the one in .*wrong"):
            checkpoint_of(found)
        recipe["base"] = {"name": str(right), "fingerprint": fingerprint(right)}
        (found / "recipe.json").write_text(json.dumps(recipe))
        assert checkpoint_of(found).base == checkpoint_of(right)

    @pytest.mark.parametrize("name", ["owner/name", "local"])
    def test_a_base_that_is_no_folder_is_told_by_the_recipe_too(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The hub, or another version of `local`, gives another model of the same shape."""
        import huggingface_hub

        monkeypatch.chdir(tmp_path)
        trained, given = copied(made.gpt2, tmp_path / "trained"), copied(made.taught, tmp_path / "given")
        file = tmp_path / "given.gguf"
        file.write_bytes(b"GGUF")
        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: given)
        monkeypatch.setattr(checkpoints, "gguf_file", lambda _: file)
        found = adapter(trained, tmp_path / "adapter", named=name)
        (found / "recipe.json").write_text(
            json.dumps({"format": 1, "base": {"name": name, "fingerprint": "of another"}})
        )
        with pytest.raises(BadData, match=r"was trained on another model than the one in .*given"):
            checkpoint_of(found)
        right = fingerprint(name)
        (found / "recipe.json").write_text(json.dumps({"format": 1, "base": {"name": name, "fingerprint": right}}))
        assert fingerprint(checkpoint_of(found).base or "") == right

    def test_its_fingerprint_is_of_both_and_of_no_place(self, tmp_path: Path) -> None:
        base = copied(made.gpt2, tmp_path / "base")
        found = adapter(base, tmp_path / "adapter")
        before = fingerprint(found)
        (found / "recipe.json").write_text(json.dumps({"seconds": 3}))
        (found / "checkpoint-5").mkdir()
        (found / "checkpoint-5" / "trainer.json").write_text("{}")
        base.rename(tmp_path / "elsewhere")
        renamed(found, "../elsewhere")
        assert fingerprint(found) == before
        renamed(found, str(made.taught()))
        assert fingerprint(found) != before


class TestPrompts:
    @pytest.fixture
    def chatty(self) -> Any:
        """A tokeniser with a chat template."""
        tokenizer = open_tokenizer(made.llama())
        tokenizer.chat_template = TEMPLATE
        return tokenizer

    def text(self, tokenizer: Any, *args: Any, **more: Any) -> str:
        return str(tokenizer.decode(prompt_ids(tokenizer, *args, **more)))

    def test_raw_where_there_is_no_template(self) -> None:
        llama, t5 = open_tokenizer(made.llama()), open_tokenizer(made.t5())
        assert self.text(llama, "the king") == "<s>the king"
        assert self.text(t5, "the king") == "the king</s>"
        assert self.text(llama, [["system", "Be brief."], ["user", "Who?"]]) == "<s>Be brief.\n\nWho?"
        with pytest.raises(lm15.InvalidRequestError, match="has no chat template"):
            prompt_ids(llama, "the king", chat=True)

    def test_in_the_template_by_default(self, chatty: Any) -> None:
        assert self.text(chatty, "Who?") == "<|end|>user: Who?\nassistant:"
        assert self.text(chatty, "Who?", chat=False) == "<s>Who?"
        assert self.text(chatty, "Who?", switches={"quiet": True}).endswith("assistant: (quietly)")

    def test_names_of_control_tokens_in_a_text_end_nothing(self, chatty: Any) -> None:
        for chat in (True, False):
            ids = prompt_ids(chatty, "a <|end|> b </s> c \ud800", chat=chat)
            assert ids.count(3) == int(chat)  # the template's own
            assert made.EOS not in ids

    def test_those_that_the_tokeniser_alone_knows_neither(self, chatty: Any) -> None:
        chatty.add_special_tokens({"additional_special_tokens": ["[SYSTEM_PROMPT]"]})
        known = chatty.convert_tokens_to_ids("[SYSTEM_PROMPT]")
        for chat in (True, False):
            ids = prompt_ids(chatty, "a [SYSTEM_PROMPT] b <pad>", chat=chat)
            assert not {known, made.PAD} & set(ids)

    def test_without_a_role_for_a_system_its_words_go_before_the_users(self, chatty: Any) -> None:
        known = chatty.chat_template
        chatty.chat_template = (
            "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + known
        )
        rows = [["system", "Be brief."], ["user", "Who?"]]
        assert self.text(chatty, rows) == self.text(chatty, "Be brief.\n\nWho?")
        with pytest.raises(lm15.InvalidRequestError, match="no system"):
            prompt_ids(chatty, [["system", "Be brief."]])

    def test_a_template_that_refuses(self, chatty: Any) -> None:
        chatty.chat_template = "{{ raise_exception('no system message') }}"
        with pytest.raises(lm15.InvalidRequestError, match="refuses the messages: no system message"):
            prompt_ids(chatty, "Who?")


def test_settings_out_of_range() -> None:
    with pytest.raises(BadData, match="8 bits are no longer opened here"):  # a run of theirs replays without it
        open_checkpoint(made.gpt2(), dtype="int8")
    with pytest.raises(BadArgument, match="no dtype 'float8'"):
        open_checkpoint(made.gpt2(), dtype="float8")
    with pytest.raises(BadArgument, match="no device 'gpu'"):
        open_checkpoint(made.gpt2(), device="gpu")
    with pytest.raises(BadArgument, match="no device 'cuda:99': torch sees"):
        open_checkpoint(made.gpt2(), device="cuda:99")


@pytest.mark.slow
def test_a_gguf_file_is_unpacked_and_saved(tmp_path: Path) -> None:
    """SmolLM2's own file: 36 s, and a second from the folder."""
    loaded = open_checkpoint("local", device="cpu")
    words = prompt_ids(loaded.tokenizer, "What is the capital of France?")
    with torch.inference_mode():
        here = loaded.model(torch.tensor([words])).logits[0, -1]
    folder = saved(loaded, tmp_path / "smollm2")
    again = open_checkpoint(folder, device="cpu")
    assert prompt_ids(again.tokenizer, "What is the capital of France?") == words
    with torch.inference_mode():
        assert torch.equal(again.model(torch.tensor([words])).logits[0, -1], here)
