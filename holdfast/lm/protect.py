"""Protect: pull important weights of a language model back to their anchor during fine-tuning.

    importance = Importance.load("imp/")
    protect = Protect(model, importance, lam=1.0)
    Trainer(model, ..., callbacks=[protect]).train()

By default the penalty does not go through the loss or Adam's moments. After each optimiser step, an exact
proximal step moves every protected weight to a point between its new value and its anchor, so it cannot
overshoot at any strength. `mode="loss"` is the paper's form, with the penalty in the loss.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import SGD, Optimizer
from transformers import TrainerCallback
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.lm.artefact import Importance, fingerprint
from holdfast.lm.lora import carried, matters_now, on_adapters
from holdfast.lm.loss_form import LossForm
from holdfast.lm.rounding import Rounding, near
from holdfast.lm.shards import Total, cut_like, local, plain_name, same_everywhere, sharded, whole
from holdfast.lm.weighing import CAP, Normalise, check_values, normalised, relatively
from holdfast.maths.equations import Strategy
from holdfast.maths.params import precise, restore, snapshot, trainable
from holdfast.steps.proximal import STRONGEST, has_own_steps, pulled, skipped, step_sizes
from holdfast.storage.files import read_json, write_json
from holdfast.storage.tensors import read_tensors, write_tensors

Mode = Literal["proximal", "loss"]
Step = Literal["adam", "lr"]
StepSizes = Callable[..., Tensor | float]
PIECE = 2**18  # elements per chunk on CPU: a few chunks fit in the cache
LEAST = 1e-12  # with a budget, a smaller λ counts as 0
ON_GPU = 2**26  # elements per chunk on GPU: fewer kernel launches
FOLDER = "_protect"  # Trainer does not push names that begin with _ to the Hub
ANCHOR, NOTE = "anchor.safetensors", "protect.json"


class Protect(TrainerCallback):
    """The penalty (λ/2) Σ a (θ - θ*)² on the trainable weights; a is their normalised importance.

    θ* are the weights at construction; a resumed `Trainer` loads those of the original run. Use it as a
    callback of `transformers.Trainer` and its subclasses, or `attach` it in your own training loop. For LoRA
    see `lora.py`.

    >>> from holdfast.lm.artefact import Card
    >>> model = nn.Linear(2, 1, bias=False)
    >>> important = {"weight": torch.tensor([[0.0, 1.0]])}  # only the second weight matters
    >>> importance = Importance(important, Card(model="mine", data="old.jsonl", sequences=60))
    >>> before = model.weight.detach().clone()
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    >>> protect = Protect(model, importance, lam=math.inf).attach(model, optimizer)
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> optimizer.step()
    >>> (model.weight != before).tolist()
    [[True, False]]
    """

    def __init__(
        self,
        model: nn.Module,
        importance: Importance,
        lam: float | None = None,
        *,
        mode: Mode = "proximal",
        step: Step = "adam",
        normalise: Normalise = "global",
        cap: float | None = CAP,
        budget: float | None = None,
        budget_rate: float = 1.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        for word, known in ((mode, Mode), (step, Step), (normalise, Normalise)):
            if word not in get_args(known):
                raise HoldfastError(unknown(str(word), list(get_args(known)), "option"))
        if (lam is None) == (budget is None):
            raise HoldfastError(
                "give either lam (the strength) or budget (the target value of ½ Σ a (θ - θ*)²)"
            )
        if lam is not None and not lam >= 0:
            raise HoldfastError(f"lam must be 0 or more, not {lam}")
        for name, value in (("budget", budget), ("budget_rate", budget_rate), ("cap", cap)):
            if value is not None and not 0 < value < math.inf:
                raise HoldfastError(f"{name} must be a finite number above 0, not {value}")
        if lam == math.inf and mode == "loss":
            raise HoldfastError("an infinite lam needs mode='proximal', the default")
        if budget is not None and mode == "loss":
            raise HoldfastError("a budget needs mode='proximal', the default")
        self.lam = 0.0 if lam is None else float(lam)
        self.budget, self.budget_rate = budget, budget_rate
        self.mode, self.step = mode, step
        self._measured_on = importance.card.model
        """Name of the model that the importance was measured on."""
        self._device, self._dtype = device, dtype
        model = extract_model_from_parallel(model, keep_torch_compile=False)
        weights = trainable(model)
        self.anchor = {name: self._kept(weight.detach().clone(), weight) for name, weight in weights.items()}
        values = {name: value for name, value in on_adapters(model, importance).items() if name in weights}
        check_values(values, weights)
        scaled = normalised(values, normalise, cap)
        self.weights = {name: self._kept(value, weights[name]) for name, value in scaled.items()}
        self.names = {weight: name for name, weight in weights.items()}
        self.clipped = 1.0
        """Factor by which `_clip` scaled the gradients of the latest step."""
        self.loss_form = LossForm(self.penalty)
        self.mark: str | None = None
        """Fingerprint of the anchor, once it is saved or loaded."""
        self.steps = 0
        """Number of optimiser steps so far; counted only while the proximal step is attached."""
        self.spent = 0.0
        """½ Σ a (θ - θ*)² after the latest step; computed only with a budget."""
        self._undo = ExitStack()
        self._said = False
        """Whether the warning about unreadable step sizes has been issued."""

    def _kept(self, value: Tensor, weight: Tensor) -> Tensor:
        """Convert to the storage device and dtype; by default the value's device and the weight's dtype."""
        return value.to(device=self._device or value.device, dtype=self._dtype or weight.dtype)

    @property
    def holds(self) -> bool:
        """Whether λ is above 0 or a budget is set."""
        return bool(self.lam) or self.budget is not None

    @override
    def __repr__(self) -> str:
        strength = f"lam={self.lam:g}" if self.budget is None else f"budget={self.budget:g}"
        held = sum(value.numel() for value in self.weights.values())
        return f"Protect({strength}, {held:,} weights of {self._measured_on!r})"

    def settings(self) -> dict[str, Any]:
        """Return the settings that must be the same when a training run resumes."""
        how = {"mode": self.mode, "step": self.step, "budget": self.budget, "budget_rate": self.budget_rate}
        strength = None if self.budget is not None else _for_json(self.lam)
        return how | {"lam": strength, "importance": fingerprint(self.weights)}

    # ---- in a custom training loop ------------------------------------------------------------------------

    def attach(self, model: nn.Module, optimizer: Optimizer, *, clip: float | None = None) -> Protect:
        """Protect every step of this optimiser until `detach`.

        `clip` is the maximum gradient norm. Use it instead of `clip_grad_norm_`, because the proximal step
        depends on the clipping factor.
        """
        self.detach()
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        if self.holds and any(group.get("weight_decay") for group in inner.param_groups):
            raise HoldfastError(
                "weight decay pulls the weights to 0, away from the anchor: set weight_decay=0"
            )
        if self.holds and any(group["lr"] is None for group in inner.param_groups):
            raise HoldfastError(
                "this optimiser sets its own learning rate, which Protect cannot read: set its lr"
            )
        # Wrapping may have replaced the parameter objects, as FSDP2 does.
        self.names = {weight: plain_name(name) for name, weight in trainable(model).items()}
        if gone := sorted(self.weights.keys() - set(self.names.values())):
            raise HoldfastError(
                f"{gone[0]} is protected, but not among the trained weights: create Protect after freezing "
                "weights and adding adapters (FSDP1 renames the weights and is not supported; use FSDP2)"
            )
        for weight, name in self.names.items():
            if name in self.weights and weight.shape != self.anchor[name].shape:
                raise HoldfastError(
                    f"{name} no longer has the shape it had when Protect was created: create it after "
                    "resizing, and measure the importance on the resized model"
                )
        own = [weight for group in inner.param_groups for weight in group["params"]]
        if any(map(sharded, own)):
            self._check_shards()
        if not any(self.names.get(weight) in self.weights for weight in own):
            raise HoldfastError(
                "the optimiser holds none of the protected weights: create Protect from the model that is "
                "trained, after PEFT has wrapped it"
            )
        if self.mode == "loss":
            for handle in self.loss_form.attach(model, inner) if self.lam else ():
                self._undo.callback(handle.remove)
        elif self.holds:
            self._follow()
            self._undo.callback(inner.register_step_post_hook(self._pull).remove)
        self.clipped = 1.0
        if clip:
            self._undo.callback(inner.register_step_pre_hook(partial(self._clip, clip)).remove)
        return self

    def _clip(self, most: float, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Clip gradients as `clip_grad_norm_` does, unless their norm is not finite; store the factor."""
        grads = [w.grad for group in optimizer.param_groups for w in group["params"] if w.grad is not None]
        spread = [grad for grad in grads if sharded(grad)]
        alone = [grad for grad in grads if not sharded(grad)]
        total = math.hypot(*(float(whole(get_total_norm(some))) for some in (alone, spread) if some))
        scale = getattr(optimizer, "grad_scale", None)  # a fused optimiser unscales in its step
        total = total if scale is None else total / float(scale)
        self.clipped = min(1.0, most / (total + 1e-6)) if math.isfinite(total) else 1.0
        if self.clipped < 1:
            for grad in grads:
                grad.mul_(self.clipped)

    def _check_shards(self) -> None:
        """Raise HoldfastError if the settings do not support shards or the processes' anchors differ."""
        if self.mode == "loss":
            raise HoldfastError("mode='loss' does not support sharded weights: leave mode at its default")
        if self._device is not None:
            raise HoldfastError(
                "device cannot be set for sharded weights, which FSDP places: leave device at its default"
            )
        if not same_everywhere(fingerprint(self.anchor)):
            raise HoldfastError(
                "the weights differed between processes when Protect was created: set "
                "cpu_ram_efficient_loading to false for FSDP"
            )

    def _follow(self) -> None:
        """Shard anchor and importance like the weights; unless `device` is set, move them to the weights."""
        for weight, name in self.names.items():
            for kept in (self.anchor, self.weights):
                if name in kept:
                    there = kept[name] if self._device is not None else kept[name].to(weight.device)
                    kept[name] = cut_like(there, weight)

    def detach(self) -> None:
        """Remove all hooks and give clipping back to the Trainer."""
        self._undo.close()

    @torch.no_grad()
    def _pull(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Apply the proximal step to every protected weight; with a budget, update λ."""
        spent, rounding = Total(), Rounding(self.steps)
        self.steps += 1
        if skipped(optimizer):
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                name = self.names.get(weight)
                if name is not None and name in self.weights:
                    r, scales = self._step_of(optimizer, weight, group)
                    factor = self.clipped if scales else 1.0
                    spent.add(self._pull_one(name, weight, r, factor, rounding), weight)
        if self.budget is not None:
            self.spent = spent.everywhere()
            self.lam = followed(self.lam, self.spent / self.budget, self.budget_rate)

    def _step_of(self, optimizer: Optimizer, weight: Tensor, group: Any) -> tuple[StepSizes, bool]:
        """Return a function for the step size r of a weight, and whether to scale r by the clipping factor.

        It is scaled for Adam's own r and for SGD, but not where other optimisers use the learning rate as r.
        """
        state = {key: local(value) for key, value in optimizer.state.get(weight, {}).items()}
        if "step" in state:  # read once: on a GPU this synchronises
            state["step"] = float(state["step"])
        own = self.step == "adam" and has_own_steps(state, group, local(weight))
        scales = own or isinstance(optimizer, SGD)
        if self.step == "adam" and not scales and not self._said:
            self._said = True
            warnings.warn(
                f"the step sizes of {type(optimizer).__name__} cannot be read: the learning rate is used "
                "instead, and lam is not comparable with its values for Adam",
                stacklevel=2,
            )
        return partial(step_sizes, state, group, adam=own), scales

    def _pull_one(self, name: str, weight: Tensor, r: StepSizes, factor: float, rounding: Rounding) -> float:
        """Apply the proximal step to one weight; return its ½ Σ a (θ - θ*)², or 0 without a budget.

        It works in chunks, so that temporary tensors stay in the CPU cache.
        """
        own, spent = local(weight), []
        kept = local(self.anchor[name]), local(self.weights[name])
        for part in pieces(own):
            u = own[part]
            anchor, a = (value[part].to(u.device) for value in kept)
            anchor, a = precise(near(u, anchor)), precise(a)
            if self.lam:
                strength = (
                    (a * min(self.lam, STRONGEST)).clamp_(max=STRONGEST).mul_(r(part=part)).mul_(factor)
                )
                rounding.into(u, pulled(precise(u), anchor, strength))
            if self.budget is not None:
                spent.append(0.5 * ((precise(u) - anchor).square_() * a).sum())
        return float(torch.stack(spent).sum()) if spent else 0.0

    def penalty(self) -> Tensor:
        """Return (λ/2) Σ a (θ - θ*)² at the current weights, to add to your own loss.

        To print it, write `protect.penalty().detach()`: it has a gradient.
        """
        terms = [
            (
                self.weights[name].to(weight.device)
                * (precise(weight) - near(weight, self.anchor[name].to(weight.device))).square()
            ).sum()
            for weight, name in self.names.items()
            if name in self.weights
        ]
        return self.lam / 2 * torch.stack(terms).sum()

    # ---- as a Trainer callback ----------------------------------------------------------------------------

    @override
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        out = Path(args.output_dir) / FOLDER
        self.loss_form.together = args.world_size if args.average_tokens_across_devices else 1
        self.steps = state.global_step
        if state.global_step:
            self._resume(out, state.global_step)
        elif args.save_strategy != "no":
            self._keep(out, first=state.is_world_process_zero)
        if self.mode == "loss" or not self.holds or not args.max_grad_norm:
            self.attach(kwargs["model"], kwargs["optimizer"])
            return
        # The Trainer does not report its clipping factor, so this callback clips instead.
        self.attach(kwargs["model"], kwargs["optimizer"], clip=args.max_grad_norm)
        self._undo.callback(setattr, args, "max_grad_norm", args.max_grad_norm)
        args.max_grad_norm = 0.0

    @override
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # Write the note before the checkpoint: a checkpoint without it cannot be resumed.
        if control.should_save:
            self.on_save(args, state, control, **kwargs)

    @override
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        out = Path(args.output_dir) / FOLDER
        if self.mark is None:  # save_strategy was "no" at the start
            self._keep(out, first=state.is_world_process_zero)
        if state.is_world_process_zero:
            lams = read_json(out / NOTE)["lam"] if (out / NOTE).exists() else {}
            write_json(
                out / NOTE, {"anchor": self.mark, "lam": lams | {str(state.global_step): _for_json(self.lam)}}
            )

    def _keep(self, out: Path, *, first: bool) -> None:
        """Save anchor and importance beside the checkpoints."""
        anchor = {name: whole(value) for name, value in self.anchor.items()}
        weights = {name: whole(value) for name, value in self.weights.items()}
        self.mark = fingerprint(anchor)
        if first:
            (out / NOTE).unlink(missing_ok=True)
            write_tensors(out / ANCHOR, {"anchor": anchor, "weights": weights}, self.mark)

    @override
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.detach()

    def _resume(self, out: Path, step: int) -> None:
        """Load the anchor and importance of the original run; with a budget, also λ.

        This Protect may have been created from trained weights. For LoRA the importance also depends on the
        random initial adapters.
        """
        noted = read_json(out / NOTE) if (out / NOTE).exists() else {"lam": {}}
        if str(step) not in noted["lam"]:
            raise HoldfastError(
                f"{out} has no record of a protected training run at step {step}: resume in the original "
                "folder, start again, or train without protection"
            )
        if self.budget is not None:
            self.lam = float(noted["lam"][str(step)])
        tensors, self.mark = read_tensors(out / ANCHOR)
        if self.mark != noted["anchor"]:
            raise HoldfastError(
                f"{out / ANCHOR} is not the anchor of this training run; start again in another folder"
            )
        for saved, kept in ((tensors["anchor"], self.anchor), (tensors["weights"], self.weights)):
            kept.update({name: saved[name].to(value.device, value.dtype) for name, value in kept.items()})

    # ---- Look-Ahead ---------------------------------------------------------------------------------------

    @classmethod
    def look_ahead(
        cls,
        model: nn.Module,
        importance: Importance,
        train: Callable[[], Any],
        data: Iterable[Mapping[str, Tensor]],
        lam: float | None = None,
        *,
        up: float = 0.0,
        down: float = 1.0,
        lam_max: float | None = None,
        fraction: float = 0.8,
        strategy: Strategy = "balance",
        normalise: Normalise = "global",
        cap: float | None = CAP,
        **rest: Any,
    ) -> Protect:
        """Create a Protect with the modified importance α' (equations 4 and 5 of the paper).

        `train` must fine-tune the model in place without protection. Then the importance for the new task
        is measured on `data`, and the weights are restored.
        """
        start, past = snapshot(model), on_adapters(model, importance)
        try:
            train()
            new = matters_now(model, importance, data)
        finally:
            restore(model, start)
        held = {name: past[name] for name in start if name in past}
        weights = relatively(
            held, carried(model, new), lam=lam or 1.0, lam_max=lam_max, up=up, down=down, fraction=fraction,
            strategy=strategy, normalise=normalise, cap=cap,
        )  # fmt: skip
        found = Importance(weights, replace(importance.card, fingerprint=""))  # checked above
        return cls(model, found, lam, normalise="none", cap=None, **rest)


def _for_json(lam: float) -> float | str:
    """Return λ as a JSON value; JSON has no infinity."""
    return lam if math.isfinite(lam) else "inf"


def followed(lam: float, share: float, rate: float) -> float:
    """Return the next λ for a budget, given the share of it that is used.

    λ is multiplied by the share, clamped to [½, 2] and raised to the power `rate`. From a λ below LEAST, the
    next λ is the share minus 1, or 0 if that is negative.
    """
    if lam < LEAST:
        return max(0.0, share - 1.0)
    return lam * math.pow(min(2.0, max(0.5, share)), rate)


def pieces(tensor: Tensor) -> Iterator[Any]:
    """Yield indices that split a tensor into chunks along its first dimension."""
    if not tensor.dim():
        yield ...
        return
    size = PIECE if tensor.device.type == "cpu" else ON_GPU
    rows = max(1, size * len(tensor) // max(tensor.numel(), 1))
    for start in range(0, len(tensor), rows):
        yield slice(start, start + rows)
