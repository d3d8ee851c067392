"""Proximal policy optimisation of a model that writes text and is paid for the whole text at its end.

Schulman et al., "Proximal Policy Optimization Algorithms" (2017), its clipped form, with generalised advantage
estimation (Schulman et al. 2016), as BIDER aligns its refiner with a reader (Jin et al., "BIDER" (2024), section 3.4,
equations 5 to 8). A state is the prompt with the tokens written so far, an action the next token, the end mark too.
A step samples a text for each prompt of a batch, has the texts paid for, and goes `epochs` times over the batch.

TRL's PPO does not fit: it takes a reward model that reads the text itself, not what another model answers from it.

The ratio of equation 7 is one of *sampling* distributions. A token is drawn from the `top_k` likeliest, and of these
from the fewest that make up `top_p`; which ones these are is kept with the text, and the probability under the new
weights is normalised over the same tokens. So it is the distribution that was drawn from whose gradient is estimated:
the mean of the gradient of log q(token) over q is 0, whatever the baseline; over q it is not 0 for the full
distribution, whose unlikely tokens every draw would push down, paid for or not. And no token that was drawn drops out
of the distribution later, which would make its ratio 0. Entropy and KL term are those of the same distribution.

At the first pass over a batch the weights are those that wrote it, so that it gives the old log-probabilities and
values itself: its ratios are 1.

Differs from the paper:

- Equation 5 is called a loss, and has the signs of an objective: clipped term minus value error plus entropy is to be
  made large. What is minimised here is its negative, with a coefficient for each term; the paper gives none.
- The sum over l below equation 7 repeats one and the same error of step t, and runs to T - t + 1. Meant is the error of
  step t + l, up to the end of the text (Schulman et al. 2016, equation 16); behind it there is nothing of value.
- Equation 8 compares the value of a state with R_t, which is 0 before the end. "The actual reward" of a state is what
  the text brings from there on: the discounted sum of rewards, with gamma = 1 the text's reward at each of its tokens.
- The entropy bonus is called L^VF in the text below equation 8, L^BONUS in equation 5.
- A text that is cut at `max_new_tokens` is paid for at its last token, for a reader would read it as it is; in the
  paper only an end mark is paid for.
- The KL term to the model at the start is ours, and off by default (`kl_coefficient`).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

from blendfilter.errors import BadArgument, WorkFailed
from blendfilter.extras import LazyModule, quiet_transformers
from blendfilter.files import json_line, path_of, write_whole, writing
from blendfilter.lm.checkpoints import end_marks, logits_at, padded_prompts
from blendfilter.lm.scoring.base import batches
from blendfilter.training.settings import MICRO_TOKENS, PPOSettings

EXTRA = "train"
WHY = "training a model"
CHECKPOINT = "ppo.pt"
REWARDS = "rewards.jsonl"
Tensor: TypeAlias = Any
torch: Any = LazyModule("torch", EXTRA, WHY)
transformers: Any = LazyModule("transformers", EXTRA, WHY)


# --- the terms; tensors of the shape (texts, tokens), right of the end mark filled up --------------------------------


def written_mask(tokens: Tensor, ends: Sequence[int]) -> Tensor:
    """Which tokens belong to the text: all up to the first of the end marks, this one too; a mask of `tokens`' shape.

    With 9 as the mark, ``[4, 9, 9, 4]`` has ``[1, 1, 0, 0]``, and ``[4, 4, 4, 4]``, which was cut, has all.
    """
    ended = torch.isin(tokens, torch.tensor([*ends], device=tokens.device))
    return (ended.long().cumsum(dim=-1) - ended.long()) == 0


def allowed_tokens(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Ids of the tokens that may be drawn, the likeliest first: (..., top_k), -1 where there are fewer.

    Of the `top_k` likeliest, renormalised, the fewest whose probabilities reach `top_p`, at least one: top-k first,
    as in transformers. Probabilities .5, .3, .15, .05 with top_k = 3 become .53, .32 and .16, of which top_p = .8
    leaves the first two.
    """
    likeliest = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    shares = torch.softmax(likeliest.values.float(), dim=-1)
    before = shares.cumsum(dim=-1) - shares
    return likeliest.indices.masked_fill((before >= top_p) & (before > 0), -1)


def restricted(logits: Tensor, allowed: Tensor) -> Tensor:
    """Log-probabilities of the `allowed` tokens among each other, minus infinity where `allowed` is -1.

    `logits` are (..., vocabulary), the others (..., top_k).
    """
    chosen = (
        logits.gather(-1, allowed.clamp(min=0)).float().masked_fill(allowed < 0, -torch.inf)
    )
    return torch.log_softmax(chosen, dim=-1)


def at_the_end(rewards: Sequence[float], written: Tensor) -> Tensor:
    """A text's reward at its last token, 0 before it and behind it."""
    last = written.long().sum(dim=-1, keepdim=True) - 1
    paid = torch.tensor([*rewards], dtype=torch.float32, device=written.device)[:, None]
    return torch.zeros(written.shape, device=written.device).scatter(-1, last, paid)


def advantages(
    rewards: Tensor, values: Tensor, written: Tensor, gamma: float, lam: float
) -> Tensor:
    """Generalised advantage estimates; 0 behind the end.

        delta_t = R_t + gamma V(s_t+1) - V(s_t)
        A_t     = delta_t + gamma lam A_t+1

    By hand: with gamma = 1, lam = .5, rewards 0, 0, 1 and values .2, .4, .8 the errors are .2, .4, .2, and from the end
    A = .2, then .4 + .5 * .2 = .5, then .2 + .5 * .5 = .45. With gamma = .5 the errors are 0, 0, .2, and A = .2, then
    .25 * .2 = .05, then .0125.
    """
    found = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    later = torch.zeros_like(following)
    for at in reversed(range(values.shape[1])):
        error = rewards[:, at] + gamma * following - values[:, at]
        later = (error + gamma * lam * later) * written[:, at]
        following = values[:, at] * written[:, at]
        found[:, at] = later
    return found


def returns(rewards: Tensor, gamma: float) -> Tensor:
    """The discounted sum of the rewards from each token on: what a value is compared with.

    By hand: rewards 0, 0, 1 with gamma = .5 are .25, .5, 1; with gamma = 1 they are 1, 1, 1.
    """
    no_values, everywhere = torch.zeros_like(rewards), torch.ones_like(rewards)
    return advantages(rewards, no_values, everywhere, gamma, 1.0)


def clipped_gain(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Equation 6: ``min(r A, clip(r, 1 - eps, 1 + eps) A)``, token by token.

    By hand, eps = .2: a ratio of 1.5 counts as 1.2 where A = 2 (2.4) and as itself where A = -2 (-3); a ratio of .5
    counts as itself where A = 2 (1), and as .8 where A = -2 (-1.6).
    """
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def entropy(log_probs: Tensor) -> Tensor:
    """Of distributions over the last dimension, in nats; what has probability 0 adds nothing.

    Two tokens at .5 have .693, one alone has 0.
    """
    return -_weighted(log_probs, log_probs)


def divergence(log_probs: Tensor, others: Tensor) -> Tensor:
    """Kullback-Leibler divergence of `others` from `log_probs`, over the last dimension, in nats.

    (.5, .5) from (.25, .75) is .5 ln 2 + .5 ln (2/3) = .144.
    """
    return _weighted(log_probs, log_probs - others.masked_fill(others == -torch.inf, 0.0))


def _weighted(log_probs: Tensor, summed: Tensor) -> Tensor:
    """The mean of `summed` under the distribution; without the infinities of tokens that are not drawn."""
    impossible = log_probs == -torch.inf
    return (log_probs.exp() * summed.masked_fill(impossible, 0.0)).sum(dim=-1)


# --- the model that writes --------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """Sampled texts.

    Attributes:
        prompts: the ids that each was written to.
        tokens: (texts, tokens), filled up on the right.
        written: the mask of what belongs to a text.
        allowed: (texts, tokens, top_k), see `allowed_tokens`.
    """

    prompts: Sequence[Sequence[int]]
    tokens: Tensor
    written: Tensor
    allowed: Tensor

    def rows(self, places: Sequence[int]) -> Written:
        """Some of the texts, cut to the longest of them."""
        width = int(self.written[places].sum(dim=-1).max())
        cut = (each[places, :width] for each in self[1:])
        return Written([self.prompts[at] for at in places], *cut)


class PolicyReading(NamedTuple):
    """What a model makes of written texts: log-probabilities of the allowed tokens, of the written ones, and values."""

    log_probs: Tensor  # (texts, tokens, top_k); behind the end those of a single token
    chosen: Tensor  # (texts, tokens); 0 behind the end
    values: Tensor  # (texts, tokens); 0 behind the end


class Policy:
    """A language model, causal or encoder-decoder, with a value head on the states from which it writes.

    Dropout is off throughout: the ratio compares weights, not chance.

    Args:
        model: of Hugging Face, LoRA adapters included; its parameters that require a gradient are trained.
        tokenizer: its tokeniser.

    Attributes:
        ends: ids that end a text.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self.ends = end_marks(model, tokenizer)
        head = model.get_output_embeddings()
        self.device = head.weight.device
        self.value_head = torch.nn.Linear(head.weight.shape[1], 1, device=self.device)
        for weights in self.value_head.parameters():  # every text is worth 0 at first
            torch.nn.init.zeros_(weights)

    def trained(self) -> dict[str, Tensor]:
        """The parameters that learn, by name; the value head's begin with `value_head.`"""
        own = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        head = self.value_head.named_parameters(prefix="value_head")
        return {**own, **dict(head)}

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        top_k: int = 10,
        top_p: float = 0.95,
    ) -> Written:
        """A sampled text for each prompt, drawn by torch's own random state."""
        allowed: list[Tensor] = []

        def keep_allowed(_: Tensor, scores: Tensor) -> Tensor:
            allowed.append(allowed_tokens(scores, top_k, top_p))
            # a place more takes the -1 of what there is fewer of
            kept = torch.full((len(scores), scores.shape[1] + 1), False, device=self.device)
            kept.scatter_(1, allowed[-1] % kept.shape[1], True)
            return scores.masked_fill(~kept[:, :-1], -torch.inf)

        model = self.model
        ids, mask = padded_prompts(prompts, model.config, self.device, self._filler)
        how = transformers.GenerationConfig(
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=self.ends,
            pad_token_id=self._filler,
            bos_token_id=getattr(model.config, "bos_token_id", None),
            decoder_start_token_id=getattr(model.config, "decoder_start_token_id", None),
            use_cache=True,
        )
        # the model's own settings have penalties and more
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        own, inner.generation_config = inner.generation_config, how
        try:
            with torch.no_grad(), quiet_transformers(EXTRA, WHY):
                made = model.generate(
                    input_ids=ids, attention_mask=mask, logits_processor=[keep_allowed]
                )
        finally:
            inner.generation_config = own
        tokens = made[:, -len(allowed) :]
        written = written_mask(tokens, self.ends)
        tokens = tokens.masked_fill(~written, self._filler)
        return Written([*prompts], tokens, written, torch.stack(allowed, dim=1))

    def texts(self, texts: Written, places: Sequence[int]) -> list[Text]:
        """The texts as a reader has them, without special tokens and white space around; `places` are the prompts'."""
        found = []
        for place, tokens, mask in zip(places, texts.tokens, texts.written, strict=True):
            row = tokens[mask]
            text = self.tokenizer.decode(
                row, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            found.append(Text(place, str(text).strip(), int(row[-1]) not in self.ends))
        return found

    def read(self, texts: Written, model: Any = None) -> PolicyReading:
        """The log-probabilities and values of `texts` (by another `model`: log-probabilities alone)."""
        reader, config = model or self.model, self.model.config
        ids, mask = padded_prompts(texts.prompts, config, self.device, self._filler)
        if config.is_encoder_decoder:
            begun = self.model.prepare_decoder_input_ids_from_labels(labels=texts.tokens)
            given = {"input_ids": ids, "decoder_input_ids": begun}
        else:
            before = texts.tokens[:, :-1]  # the last one is written and not read
            ids = torch.cat([ids, before], dim=1)
            mask = torch.cat([mask, torch.ones_like(before)], dim=1)
            given = {"input_ids": ids, "position_ids": (mask.cumsum(dim=-1) - 1).clamp(min=0)}
        given |= {"attention_mask": mask, "use_cache": False}
        written, allowed = texts.written, texts.allowed
        hidden, logits = logits_at(reader, reader.get_output_embeddings(), written, **given)
        # behind a text's end one token has probability 1, so that entropy and divergence are 0 there
        log_probs = torch.full((*allowed.shape,), -torch.inf, device=hidden.device)
        log_probs[..., 0] = 0.0
        places = written[..., None].expand_as(log_probs)
        log_probs = log_probs.masked_scatter(places, restricted(logits, allowed[written]))
        is_chosen = (allowed == texts.tokens[..., None]) & written[..., None]
        chosen = log_probs.masked_fill(~is_chosen, 0.0).sum(dim=-1)
        values = torch.zeros(written.shape, device=hidden.device)
        if model is None:
            values = values.masked_scatter(written, self.value_head(hidden.float())[:, 0])
        return PolicyReading(log_probs, chosen, values)

    @property
    def _filler(self) -> int:
        pad = self.tokenizer.pad_token_id
        return int(self.ends[0] if pad is None else pad)


# --- learning ---------------------------------------------------------------------------------------------------------


class StepFigures(NamedTuple):
    """What a step came to; shares are fractions of 1, all but the first four means over the last pass's tokens.

    Attributes:
        step: from 1.
        reward: the mean of `rewards`, which stand beside the prompts' `places`.
        tokens: the mean length. cut: the share of texts without an end mark.
        moved: the mean distance of the ratio from 1. clipped: the share of tokens whose gain was clipped.
        entropy: in nats. kl: to the model at the start, in nats; 0 where it is no term.
        value_error: squared.
    """

    step: int
    reward: float
    rewards: list[float]
    places: list[int]
    tokens: float
    cut: float
    moved: float
    clipped: float
    entropy: float
    kl: float
    value_error: float


def learn(
    policy: Policy,
    optimizer: Any,
    texts: Written,
    rewards: Sequence[float],
    settings: PPOSettings,
    reference: Any = None,
) -> dict[str, float]:
    """Move the policy by one batch: `epochs` passes, a step of the optimiser each. Means over the last pass's tokens.

    `reference` is the model that the KL term compares with.
    """
    lengths = texts.written.sum(dim=-1)
    longest, total = int(lengths.max()), int(lengths.sum())
    sizes = [len(prompt) + longest for prompt in texts.prompts]
    at_a_time = settings.micro_tokens or MICRO_TOKENS[policy.device.type]
    pieces = []
    for part in batches(sizes, tokens=at_a_time, rows=len(sizes)):
        piece = texts.rows(part)
        pieces.append((piece, at_the_end([rewards[row] for row in part], piece.written)))
    before: list[tuple[Tensor, Tensor, Tensor]] = []
    sums: dict[str, float] = {}
    for epoch in range(settings.epochs):
        sums = dict.fromkeys(("moved", "clipped", "entropy", "kl", "value_error"), 0.0)
        for at, (piece, reward) in enumerate(pieces):
            now = policy.read(piece)
            if epoch == 0:  # the weights have not moved: these are the old ones
                values = now.values.detach()
                advantage = advantages(
                    reward, values, piece.written, settings.gamma, settings.lam
                )
                other = now.log_probs.detach()
                if reference is not None:
                    with torch.no_grad():
                        other = policy.read(piece, reference).log_probs
                before.append((now.chosen.detach(), advantage, other))
            chosen, advantage, other = before[at]
            ratio = (now.chosen - chosen).exp()
            gain = clipped_gain(ratio, advantage, settings.clip)
            error = (now.values - returns(reward, settings.gamma)) ** 2
            spread, drift = entropy(now.log_probs), divergence(now.log_probs, other)
            loss = (
                settings.value_coefficient * error
                - gain
                - settings.entropy_coefficient * spread
                + settings.kl_coefficient * drift
            )
            ((loss * piece.written).sum() / total).backward()
            terms = {
                "moved": (ratio - 1).abs(),
                "clipped": gain < ratio * advantage,
                "entropy": spread,
                "kl": drift,
                "value_error": error,
            }
            for name, term in terms.items():
                sums[name] += float((term.detach() * piece.written).sum()) / total
        if settings.max_norm:
            torch.nn.utils.clip_grad_norm_(policy.trained().values(), settings.max_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return sums


class Text(NamedTuple):
    """A text that was written to the prompt at `place`; `cut` where it has no end mark."""

    place: int
    text: str
    cut: bool


OnStep = Callable[[StepFigures, float], None]
"""Told of every step: its figures, and the seconds that it took."""


def silent_step(figures: StepFigures, seconds: float) -> None:
    """Say nothing."""


def train_ppo(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    reward: Callable[[Sequence[Text]], Sequence[float]],
    out: str | Path,
    settings: PPOSettings,
    *,
    reference: Any = None,
    on_step: OnStep = silent_step,
) -> list[StepFigures]:
    """Move `policy` towards texts that `reward` pays for; what each step came to.

    The folder `out` takes `rewards.jsonl`, a line a step, and every few steps `ppo.pt`, from where the same call
    resumes after a kill, to the same weights (on a CPU, with as many threads): what a step draws, and which prompts it
    takes, follows from `seed` and its number alone. (The caller sees to it that the settings are the same.) A finished
    folder is not trained on; the policy gets its weights.

    Args:
        reward: what texts are worth, a number each.
        prompts: token ids. Every prompt is taken once before any is taken again.
        reference: the model at the start, for the KL term; needed where `kl_coefficient` is above 0.

    Raises:
        BadArgument: no reference. What `reward` raises; the same call resumes.
    """
    if settings.kl_coefficient and reference is None:
        raise BadArgument("kl_coefficient is above 0: give the model at the start as reference")
    folder = path_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    trained = policy.trained()
    optimizer = torch.optim.AdamW(trained.values(), lr=settings.learning_rate, weight_decay=0.0)
    path, rewards_file = folder / CHECKPOINT, folder / REWARDS
    figures: list[StepFigures] = []
    if path.exists():
        kept = torch.load(path, weights_only=True)
        with rewards_file.open("rb") as file:
            lines = [*islice(file, int(kept["step"]))]
        with torch.no_grad():
            for name, each in trained.items():
                each.copy_(kept["weights"][name])
        optimizer.load_state_dict(kept["optimizer"])
        write_whole(rewards_file, lines)
        figures = steps_in(folder)
    else:
        rewards_file.unlink(missing_ok=True)
    for step in range(len(figures) + 1, settings.steps + 1):
        started = time.monotonic()
        places = _places(len(prompts), step, settings)
        with torch.random.fork_rng():
            torch.manual_seed(_seed(settings.seed, step))
            texts = policy.write(
                [prompts[at] for at in places],
                max_new_tokens=settings.max_new_tokens,
                top_k=settings.top_k,
                top_p=settings.top_p,
            )
        read = policy.texts(texts, places)
        rewards = [float(each) for each in reward(read)]
        found = learn(policy, optimizer, texts, rewards, settings, reference)
        known = [*found.values(), *(float(each.detach().sum()) for each in trained.values())]
        if not all(map(math.isfinite, known)):  # before anything of it is kept
            raise WorkFailed(
                f"step {step} moved the weights to what is no number: lower learning_rate=, and name another folder "
                "(out=)"
            )
        length = float(texts.written.sum(dim=-1).float().mean())
        figures.append(
            StepFigures(
                step,
                round(fmean(rewards), 6),
                [round(each, 6) for each in rewards],
                places,
                round(length, 6),
                round(fmean(each.cut for each in read), 6),
                **{name: round(value, 6) for name, value in found.items()},
            )
        )
        with rewards_file.open("ab") as file:
            file.write(json_line(figures[-1]._asdict()))
        if step % settings.every == 0 or step == settings.steps:
            _keep(folder, trained, optimizer, step)
        on_step(figures[-1], time.monotonic() - started)
    return figures


def steps_in(folder: Path) -> list[StepFigures]:
    """What the steps of a finished training came to."""
    return [
        StepFigures(**json.loads(line)) for line in (folder / REWARDS).read_bytes().splitlines()
    ]


def _seed(seed: int, number: int) -> int:
    return (seed * 1_000_003 + number) % 2**63


def _places(n: int, step: int, settings: PPOSettings) -> list[int]:
    """The prompts of a step, by number: one shuffled pass over all of them after another."""
    places: list[int] = []
    first = (step - 1) * settings.batch
    for at in range(first, first + settings.batch):
        generator = torch.Generator().manual_seed(_seed(settings.seed, at // n))
        places.append(int(torch.randperm(n, generator=generator)[at % n]))
    return places


def _keep(folder: Path, trained: Mapping[str, Tensor], optimizer: Any, step: int) -> None:
    """The checkpoint, whole or not at all."""
    weights = {name: each.detach().cpu() for name, each in trained.items()}
    kept = {"weights": weights, "optimizer": optimizer.state_dict(), "step": step}
    temporary = folder / f".{CHECKPOINT}.tmp"
    with writing(folder / CHECKPOINT), temporary.open("wb") as file:
        torch.save(kept, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / CHECKPOINT)
