"""Protect: holds a language model's weights to where they are, the faster the more they matter.

    importance = Importance.load("imp/")
    protect = Protect(model, importance, lam=1.0)
    Trainer(model, ..., callbacks=[protect]).train()

In the form that is the default nothing goes through the loss or through Adam's moments: after each step of
the optimiser every weight is drawn back towards its anchor by the exact minimiser of the penalty, a point
between the two. No strength can make that diverge. `mode="loss"` is the paper's form, for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import TrainerCallback

from holdfast.equations import Strategy, cutoff, modulate, relative_importance, up_bounds
from holdfast.errors import HoldfastError
from holdfast.files import read_json, write_json
from holdfast.importance import SequenceSums
from holdfast.lm.artefact import Importance, fingerprint
from holdfast.lm.clipping import Clipping
from holdfast.lm.lora import on_adapters
from holdfast.lm.shards import Total, cut_like, local, plain_name, same_everywhere, sharded, whole
from holdfast.params import Params, precise, restore, snapshot, trainable
from holdfast.proximal import STRONGEST, pulled, skipped, step_sizes
from holdfast.store import read_tensors, write_tensors

Mode = Literal["proximal", "loss"]
Step = Literal["adam", "lr"]
Normalise = Literal["global", "tensor", "none"]
CAP = 1e4
PIECE = 2**18  # numbers that are handled at once: a few such pieces fit into a cache
ON_GPU = 2**26  # where there is no such cache, and every call has its price
ANCHOR, NOTE = "protect-anchor.safetensors", "protect.json"


class Protect(TrainerCallback):
    """(λ/2) Σ a (θ - θ*)² on the trainable weights, θ* being what they are when this is made.

    A callback of `transformers.Trainer` and of whatever derives from it; `attach` does the same for a loop of
    your own. With LoRA the adapters' weights are held (see `lora.py`).
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
        if (lam is None) == (budget is None):
            raise HoldfastError("give lam, a strength, or budget, how far the weights may go")
        if lam is not None and not lam >= 0:
            raise HoldfastError(f"lam must be 0 or more, not {lam}")
        if lam == math.inf and mode == "loss":
            raise HoldfastError("an infinite lam is held by the proximal step: leave mode at its default")
        if budget is not None and mode == "loss":
            raise HoldfastError("a budget is kept by the proximal step: leave mode at its default")
        self.lam = 0.0 if lam is None else float(lam)
        self.budget, self.budget_rate = budget, budget_rate
        self.mode, self.step = mode, step
        self._device, self._dtype = device, dtype
        weights = trainable(model)
        self.anchor = {name: self._kept(weight.detach().clone()) for name, weight in weights.items()}
        values = on_adapters(model, importance)
        scaled = normalised(values, normalise, cap)
        self.weights = {name: self._kept(scaled[name]) for name in weights if name in scaled}
        if not self.weights:
            raise HoldfastError("none of the trainable weights has an importance; measure it on this model")
        self.names = {weight: name for name, weight in weights.items()}
        self.clipping = Clipping(weights.values())
        self.parts = 1
        """Losses that `Trainer` adds up to one step, where it divides them by all items of that step."""
        self.mark: str | None = None
        """The fingerprint of the anchor, once it is kept on disk."""
        self._probe: Tensor | None = None
        """A factor of the penalty that gets a gradient only if the penalty is part of what is trained on."""
        self.spent = 0.0
        """½ Σ a (θ - θ*)² after the latest step, where there is a budget."""
        self._handles: list[Any] = []

    def _kept(self, value: Tensor) -> Tensor:
        """Where and how finely anchor and importance are kept."""
        return value.to(device=self._device or value.device, dtype=self._dtype or value.dtype)

    def settings(self) -> dict[str, Any]:
        """What a training that goes on must have in common with the one that began."""
        how = {"mode": self.mode, "step": self.step, "budget": self.budget, "budget_rate": self.budget_rate}
        strength = None if self.budget is not None else _for_json(self.lam)
        return how | {"lam": strength, "importance": fingerprint(self.weights)}

    # ---- in a loop of one's own ---------------------------------------------------------------------------

    def attach(self, model: nn.Module, optimizer: Optimizer) -> Protect:
        """Protect every step of this optimiser, until `detach`."""
        self.detach()
        inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate wraps it
        decayed = [group for group in inner.param_groups if group.get("weight_decay")]
        if decayed and (self.lam or self.budget is not None):
            raise HoldfastError("weight decay pulls towards 0, against the anchor: set weight_decay=0")
        # Wrapping may have put other objects in the place of weights: FSDP2 does.
        self.names = {weight: plain_name(name) for name, weight in trainable(model).items()}
        if gone := sorted(self.weights.keys() - set(self.names.values())):
            raise HoldfastError(
                f"{gone[0]} is to be held, but is not among the weights that are trained: make Protect after "
                "freezing and wrapping (FSDP1, which renames them, cannot be held; FSDP2 can)"
            )
        self.clipping = Clipping(self.names)
        own = [weight for group in inner.param_groups for weight in group["params"]]
        if any(map(sharded, own)):
            self._check_shards()
        if not any(self.names.get(weight) in self.weights for weight in own):
            raise HoldfastError(
                "the optimiser has other weights than those protected; make Protect of the model as it is "
                "trained, after PEFT has wrapped it"
            )
        if self.mode == "loss":
            if self.lam:
                self._handles.append(model.register_forward_hook(self._add_penalty, with_kwargs=True))
                self._handles.append(inner.register_step_pre_hook(self._check_penalty))
            return self
        if self.lam or self.budget is not None:
            self._follow()
            self.clipping.start()
            self._handles.append(inner.register_step_post_hook(self._pull))
        return self

    def _check_shards(self) -> None:
        """What cannot be held where weights are spread over processes."""
        if self.mode == "loss":
            raise HoldfastError("mode='loss' does not work on shards: leave mode at its default")
        if self._device is not None:
            raise HoldfastError("shards are held where FSDP has put them: leave device at its default")
        if not same_everywhere(fingerprint(self.anchor)):
            raise HoldfastError(
                "not every process had the weights when Protect was made: set cpu_ram_efficient_loading to "
                "false for FSDP"
            )

    def _follow(self) -> None:
        """Go where the weights have gone since, unless a place was given: copying at each step costs more."""
        for weight, name in self.names.items():
            for kept in (self.anchor, self.weights):
                if name in kept:
                    there = kept[name] if self._device is not None else kept[name].to(weight.device)
                    kept[name] = cut_like(there, weight)

    def detach(self) -> None:
        """Leave model and optimiser as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.clipping.stop()

    @torch.no_grad()
    def _pull(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """The proximal step of every weight."""
        clipped, spent = self.clipping.taken(), Total()
        if skipped(optimizer):
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                name = self.names.get(weight)
                if name is not None and name in self.weights:
                    spent.add(
                        self._pull_one(name, weight, optimizer.state.get(weight, {}), group, clipped), weight
                    )
        if self.budget is not None:  # dual ascent: λ rises while the weights are too far, and falls after
            self.spent = spent.everywhere()
            self.lam = max(0.0, self.lam + self.budget_rate * (self.spent - self.budget))

    def _pull_one(self, name: str, weight: Tensor, state: Any, group: Any, clipped: float) -> float:
        """The proximal step of one weight, and what it has spent of a budget.

        Piece by piece: what is needed beside stays small, and in a processor's cache, three times as fast.
        """
        own, spent = local(weight), []
        state = {key: local(value) for key, value in state.items()}
        if "step" in state:  # read once: on a GPU that is a wait
            state["step"] = float(state["step"])
        kept = local(self.anchor[name]), local(self.weights[name])
        for part in pieces(own):
            u = own[part]
            anchor, a = (precise(value[part].to(u.device)) for value in kept)
            if self.lam:
                r = step_sizes(state, group, adam=self.step == "adam", part=part)
                strength = (a * min(self.lam, STRONGEST)).clamp_(max=STRONGEST).mul_(r).mul_(clipped)
                u.copy_(pulled(u, anchor, strength))
            if self.budget is not None:
                spent.append(0.5 * ((precise(u) - anchor).square_() * a).sum())
        return float(torch.stack(spent).sum()) if spent else 0.0

    def _add_penalty(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> Any:
        """The paper's form: a term of the loss, whatever that does to Adam's moments and to clipping."""
        if not model.training:
            return output
        if getattr(output, "loss", None) is None:
            raise HoldfastError(
                "mode='loss' needs the model to compute its own loss from labels; here the trainer does: "
                "use the proximal form"
            )
        terms = [
            (
                self.weights[name].to(weight.device)
                * (precise(weight) - self.anchor[name].to(weight.device)).square()
            ).sum()
            for weight, name in self.names.items()
            if name in self.weights
        ]
        self._probe = torch.ones_like(terms[0], requires_grad=torch.is_grad_enabled())
        # A loss that is divided by all items of a step is not averaged over its parts any more.
        parts = self.parts if kwargs.get("num_items_in_batch") is not None else 1
        output.loss = output.loss + self.lam / 2 / parts * self._probe * torch.stack(terms).sum()
        return output

    def _check_penalty(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse to train on where a trainer makes its own loss of the model's output, and drops ours."""
        if self._probe is not None and self._probe.requires_grad and self._probe.grad is None:
            raise HoldfastError(
                "this trainer does not use the model's own loss, so that mode='loss' would hold nothing: "
                "use the proximal form"
            )

    # ---- as a callback of Trainer -----------------------------------------------------------------------

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Attach; where a training goes on, with the anchor it began with, which else is kept from now on."""
        out = Path(args.output_dir)
        together = args.world_size if args.average_tokens_across_devices else 1
        self.parts = args.gradient_accumulation_steps * together
        if state.global_step:
            self._resume(out, state.global_step)
        elif args.save_strategy != "no":
            self._keep(out, first=state.is_world_process_zero)
        self.attach(kwargs["model"], kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the strength before a checkpoint is written: one without a note could not be gone on from."""
        if control.should_save:
            self.on_save(args, state, control, **kwargs)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note how strong the protection was at this step."""
        out = Path(args.output_dir)
        if self.mark is None:  # saving was not planned for
            self._keep(out, first=state.is_world_process_zero)
        if state.is_world_process_zero:
            lams = read_json(out / NOTE)["lam"] if (out / NOTE).exists() else {}
            write_json(
                out / NOTE, {"anchor": self.mark, "lam": lams | {str(state.global_step): _for_json(self.lam)}}
            )

    def _keep(self, out: Path, *, first: bool) -> None:
        """Write the anchor beside the checkpoints, once."""
        anchor = {name: whole(value) for name, value in self.anchor.items()}
        self.mark = fingerprint(anchor)
        if first:
            (out / NOTE).unlink(missing_ok=True)
            write_tensors(out / ANCHOR, {"anchor": anchor}, self.mark)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Detach."""
        self.detach()

    def _resume(self, out: Path, step: int) -> None:
        """A resumed Trainer loads weights before it begins: what they are now is no anchor."""
        noted = read_json(out / NOTE) if (out / NOTE).exists() else {"lam": {}}
        if str(step) not in noted["lam"]:
            raise HoldfastError(
                f"{out} has no protected training that came to step {step}: go on in the folder it began in, "
                "start anew, or train without protection"
            )
        if self.budget is not None:
            self.lam = float(noted["lam"][str(step)])
        tensors, self.mark = read_tensors(out / ANCHOR)
        if self.mark != noted["anchor"]:
            raise HoldfastError(f"{out / ANCHOR} is not the anchor of this training; start anew")
        self.anchor = {name: self._kept(value) for name, value in tensors["anchor"].items()}

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
        """Hold only what the old ability needs more than the new one does.

        `train` fine-tunes the model in place, without protection; on `data` the importance of what it came to
        is measured. Then the weights go back to where they were, and α' takes the place of the importance.
        """
        start, past = snapshot(model), on_adapters(model, importance)
        train()
        sums = SequenceSums(model, importance.card.kind, squared=importance.card.squared)
        for sequence in data:
            sums.add(model, sequence)
        ahead = sums.mean()
        restore(model, start)
        held = {name: past[name] for name in start if name in past}
        weights = relatively(
            held, ahead, lam=lam or 1.0, lam_max=lam_max, up=up, down=down, fraction=fraction,
            strategy=strategy, normalise=normalise, cap=cap,
        )  # fmt: skip
        found = Importance(weights, replace(importance.card, fingerprint=""))  # it has been checked
        return cls(model, found, lam, normalise="none", cap=None, **rest)


def _for_json(lam: float) -> float | str:
    """As JSON has it, which knows no infinity."""
    return lam if math.isfinite(lam) else "inf"


def normalised(values: Params, how: Normalise = "global", cap: float | None = CAP) -> Params:
    """a = min(α / mean α, cap), the mean over all weights or over each tensor."""
    if how == "none":
        scaled = {name: precise(value) for name, value in values.items()}
    else:
        overall = _mean(values)
        scales = {
            name: _mean({name: value}) if how == "tensor" else overall for name, value in values.items()
        }
        scaled = {name: precise(value) / (scales[name] or 1.0) for name, value in values.items()}
    return scaled if cap is None else {name: value.clamp(max=cap) for name, value in scaled.items()}


def relatively(
    past: Params,
    ahead: Params,
    *,
    lam: float = 1.0,
    lam_max: float | None = None,
    up: float = 0.0,
    down: float = 1.0,
    fraction: float = 0.8,
    strategy: Strategy = "balance",
    normalise: Normalise = "global",
    cap: float | None = CAP,
) -> Params:
    """α' (equations 4 and 5) of importances that are brought to one scale, that of the past."""
    scale = _mean(past) or 1.0
    held = normalised(past, normalise, cap)
    found = {}
    for name, value in past.items():
        rho = relative_importance(precise(value) / scale, precise(ahead[name]).to(value.device) / scale)
        tau = cutoff(rho, fraction)
        lowest, highest = up_bounds(tau, lam, lam_max or 0.0)
        found[name] = modulate(held[name], rho, tau, lowest + up * (highest - lowest), down, strategy)
    return found


def _mean(values: Params) -> float:
    count = sum(value.numel() for value in values.values())
    return math.fsum(float(value.sum(dtype=torch.float64)) for value in values.values()) / max(count, 1)


def pieces(tensor: Tensor) -> Iterator[Any]:
    """Indices that cut a tensor into pieces of about the same size, whatever its layout in memory."""
    if not tensor.dim():
        yield ...
        return
    size = PIECE if tensor.device.type == "cpu" else ON_GPU
    rows = max(1, size * len(tensor) // max(tensor.numel(), 1))
    for start in range(0, len(tensor), rows):
        yield slice(start, start + rows)
