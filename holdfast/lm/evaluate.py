"""Evaluate a language model: loss on given outputs, GSM8K exact match and MBPP pass@1."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.lm import sandbox
from holdfast.lm.half import quick_half
from holdfast.lm.tasks import Program, code_of, final_number, plain_number
from holdfast.lm.text import Pair, Sequences, collate
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import eval_mode

OnItem = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Loss:
    """Loss and accuracy over output tokens."""

    loss: float
    """Mean negative log-likelihood per output token, in nats."""
    accuracy: float
    """Share of output tokens that the model considers most likely."""
    tokens: int


@torch.no_grad()
def output_loss(
    model: nn.Module, sequences: Sequences, pad: int, batch: int = 8, told: OnItem = _silent
) -> Loss:
    """Compute loss and accuracy over all output tokens."""
    device = next(model.parameters()).device
    total = right = tokens = 0.0
    with eval_mode(model), quick_half(model):
        for start in range(0, len(sequences), batch):
            rows = [sequences[i] for i in range(start, min(start + batch, len(sequences)))]
            inputs = {name: value.to(device) for name, value in collate(rows, pad).items()}
            labels = inputs.pop("labels")[:, 1:]
            asked = labels != IGNORED
            logits, wanted = model(**inputs).logits[:, :-1][asked].float(), labels[asked]
            total += float(nn.functional.cross_entropy(logits, wanted, reduction="sum"))
            right += int((logits.argmax(-1) == wanted).sum())
            tokens += len(wanted)
            told(start + len(rows), len(sequences))
    return Loss(total / max(tokens, 1), right / max(tokens, 1), int(tokens))


@torch.no_grad()
def generate(model: Any, tokenizer: Any, prompt: str, stops: Sequence[str], tokens: int) -> str:
    """Return the greedy continuation of at most `tokens` tokens, cut before the first stop string."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    room, length = context_of(model), inputs["input_ids"].shape[1] + tokens
    if room is not None and length > room:
        raise HoldfastError(
            f"the prompt and the answer may take {length} tokens, but the model's context is {room}; "
            "use fewer --shots"
        )
    with eval_mode(model), quick_half(model):
        found = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=tokens,
            stop_strings=list(stops) or None,
            tokenizer=tokenizer,
            pad_token_id=tokenizer.pad_token_id,
        )
    text = str(tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def context_of(model: Any) -> int | None:
    """Return the context length in the model's config, or None if it has none."""
    room = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return int(room) if room else None


def gsm8k_exact(
    model: Any, tokenizer: Any, items: Sequence[Pair], shots: Sequence[Pair], told: OnItem = _silent
) -> dict[str, float]:
    """Return the shares of correct answers: by the last number (flexible) or the one after #### (strict)."""
    before = "".join(f"{shot.prompt}{shot.answer}\n\n" for shot in shots)
    last = strict = 0
    for number, item in enumerate(items, start=1):
        said = generate(model, tokenizer, before + item.prompt, ("Question:", "</s>", "<|im_end|>"), 256)
        gold = plain_number(item.answer.rpartition("####")[2].strip())
        last += final_number(said) == gold
        strict += final_number(said, strict=True) == gold
        told(number, len(items))
    return {"flexible": last / len(items), "strict": strict / len(items)}


def mbpp_pass(
    model: Any,
    tokenizer: Any,
    items: Sequence[Program],
    shots: Sequence[Program],
    told: OnItem = _silent,
    *,
    unsafe: bool = False,
) -> dict[str, float]:
    """Return pass@1: the share of tasks whose greedily decoded program passes all tests.

    The programs run in the sandbox. With `unsafe`, they also run where the sandbox does not work.
    """
    sandbox.check(unsafe=unsafe)
    before = "".join(f"{shot.prompt}{shot.code}\n[DONE]\n\n" for shot in shots)
    passed = 0
    for number, item in enumerate(items, start=1):
        said = generate(model, tokenizer, before + item.prompt, ("[DONE]",), 256)
        passed += passes(item, code_of(said), unsafe=unsafe)
        told(number, len(items))
    return {"pass@1": passed / len(items)}


# ---- the verdict on a program -----------------------------------------------------------------------------


def passes(item: Program, code: str, *, unsafe: bool = False) -> bool:
    """Run a program in the sandbox and compare its answers with the tests of a task in another one.

    The program is asked for the values that the tests compare and never sees what they are compared with. It
    passes only if its answers are right, whatever it prints, however it exits and whatever it does to its
    interpreter. Answers must be plain data: an object could equal anything.
    """
    split = _Split(item)
    program = "\n".join(["from __future__ import annotations", code, item.setup, *split.steps])
    result = sandbox.run_program(program, questions=split.questions, unsafe=unsafe)
    if result.outcome != "passed":
        return False
    answers = f"answers = [read(one) for one in json.loads({result.answers!r})]"
    judge = "\n".join([sandbox.READ, answers, *split.imports, *split.tests])
    return sandbox.run_program(judge, unsafe=unsafe).outcome == "passed"


class _Split:
    """The tests of a task, split into questions to a program and tests of its answers.

    Each value that uses a name of the program is asked of the program: a name that the reference solution
    defines, or an unknown one. The other values and the comparisons stay in the tests of the answers, for
    which the imports of the reference solution are repeated.
    """

    def __init__(self, item: Program) -> None:
        self.questions: list[str] = []
        self.tests: list[str] = []
        self.steps: list[str] = []
        """Statements that are not assertions; the program runs them first."""
        known = _parsed(f"{item.code}\n{item.setup}") or ast.Module([], [])
        imports = [one for one in known.body if isinstance(one, ast.Import | ast.ImportFrom)]
        self.imports = [ast.unparse(one) for one in imports]
        imported = {alias.asname or alias.name.partition(".")[0] for one in imports for alias in one.names}
        defined = {getattr(one, "name", "") for one in known.body}  # functions and classes
        assigned = (one for step in known.body if isinstance(step, ast.Assign) for one in ast.walk(step))
        defined |= {
            one.id for one in assigned if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        self.foreign = (imported | set(dir(builtins))) - defined
        for test in item.tests:
            parsed = _parsed(test)
            if parsed is None:
                raise HoldfastError(
                    f"the test {test!r} of an MBPP task is not Python; download the data again"
                )
            for step in parsed.body:
                if isinstance(step, ast.Assert):
                    self.tests.append(ast.unparse(ast.Assert(self._truth(step.test))))
                else:
                    self.steps.append(ast.unparse(step))

    def _truth(self, node: ast.expr) -> ast.expr:
        """Return a condition in which answers replace the values that it compares."""
        if isinstance(node, ast.BoolOp):
            return ast.BoolOp(node.op, [self._truth(one) for one in node.values])
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return ast.UnaryOp(node.op, self._truth(node.operand))
        if isinstance(node, ast.Compare):
            left = self._value(node.left)
            return ast.Compare(left, node.ops, [self._value(one) for one in node.comparators])
        if isinstance(node, ast.Call) and not self._asks(node.func):  # math.isclose(f(1), 0.5), all(f(1))
            values = [self._value(one) for one in node.args]
            named = [ast.keyword(one.arg, self._value(one.value)) for one in node.keywords]
            return ast.Call(node.func, values, named)
        return self._value(ast.Call(ast.Name("bool", ast.Load()), [node], []))

    def _value(self, node: ast.expr) -> ast.expr:
        """Return an expression, or the answer to it if it is asked of the program."""
        if not self._asks(node):
            return node
        self.questions.append(ast.unparse(node))
        place = ast.Constant(len(self.questions) - 1)
        return ast.Subscript(ast.Name("answers", ast.Load()), place, ast.Load())

    def _asks(self, node: ast.expr) -> bool:
        """Return whether an expression uses a name of the program."""
        names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
        own = {one.id for one in names if isinstance(one.ctx, ast.Store)}  # of a comprehension
        return bool({one.id for one in names} - own - self.foreign)


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError):
        return None
