"""The demo: its sentences, its commands, and what it says."""

import re
import shlex

import pytest
from helpers.command_line import call, refused

from holdfast.data.readers import read_pairs
from holdfast.everyday import demo
from holdfast.learning.learner import Learner


def pairs(name: str) -> list[tuple[str, str]]:
    return [(row.text, row.label) for row in read_pairs(str(demo.HERE / f"{name}.csv"))]


def test_no_question_is_taught_and_no_label_comes_twice() -> None:
    taught, asked = [pairs("week1"), pairs("week2")], [pairs("questions1"), pairs("questions2")]
    assert not {text for rows in taught for text, _ in rows} & {text for rows in asked for text, _ in rows}
    labels = [{label for _, label in rows} for rows in taught]
    assert labels == [{label for _, label in rows} for rows in asked]
    assert not labels[0] & labels[1]


def test_the_demo_says_what_its_learners_do(one_layer: str, tmp_path, capsys) -> None:
    place = tmp_path / "my demo"
    assert call("demo", "--model", one_layer, "--out", str(place)) == 0
    said = capsys.readouterr().out
    assert "caution" not in said
    assert "training 1" not in said
    asked = pairs("questions1")
    for name, state in (("Holdfast", "intents"), ("plain fine-tuning", "seq")):
        learner = Learner.load(place / state)
        answers = learner.predict([text for text, _ in asked])
        right = sum(answer == label for answer, (_, label) in zip(answers, asked, strict=True))
        (shown,) = re.findall(rf"^  {name} +(\d+) +(\d+)$", said, re.MULTILINE)
        assert int(shown[1]) == right
    (command,) = re.findall(r"^Ask it:  holdfast (predict .+)$", said, re.MULTILINE)
    assert call(*shlex.split(command)) == 0


def test_the_demo_leaves_a_folder_that_is_not_empty_alone(tmp_path, capsys, one_layer: str) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    refused(capsys, "not empty; choose a new folder", "demo", "--out", str(tmp_path), "--model", one_layer)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.slow
def test_holdfast_keeps_the_first_week_and_plain_fine_tuning_forgets_it(tmp_path) -> None:
    demo.unpack(tmp_path)
    ours = [demo.teach_week(tmp_path, week) for week in demo.WEEKS]
    plain = [demo.teach_week(tmp_path, week, method="seq") for week in demo.WEEKS]
    assert ours[1].asked[0].right >= 23
    assert plain[0].asked[0].right >= 20
    assert plain[1].asked[0].right <= 6
    text, label, _ = ours[1].wrong[0]
    assert demo.correct(tmp_path, text, label).learner.predict([text]) == [label]
