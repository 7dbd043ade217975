"""The paper's streams: the sentence counts of its tables, and its three orders."""

import json
from collections import Counter
from pathlib import Path

import pytest

from holdfast.data import load_stream
from holdfast.data.paper import ANNOMI_CSV, annomi, annomi_from_csv, hwu64
from holdfast.data.tasks import Split, Task
from holdfast.errors import HoldfastError

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the paper's data is not beside the repository")

# train/dev/test of each intent
HWU64 = """
0 music 865/96/241, quirky 761/85/211, factoid 758/84/210, remove 708/79/197, negate 676/75/188
1 praise 565/63/157, sendemail 499/55/139, explain 492/55/137, repeat 421/47/117, affirm 399/44/111
2 radio 396/44/111, confirm 396/44/110, post 389/44/108, definition 363/40/101, dontcare 324/36/90
3 recipe 297/33/83, podcasts 272/30/76, currency 272/30/76, events 232/26/64, commandstop 230/26/64
4 createoradd 211/24/59, stock 194/22/54, locations 185/20/51, hue_lightoff 177/20/49, ticket 172/19/48
5 audiobook 172/19/48, game 168/19/47, hue_lightchange 161/18/45, querycontact 159/18/44, likeness 147/16/41
6 music 865/96/241, sendemail 498/56/139, post 390/43/108, events 232/26/64, ticket 172/19/48
7 quirky 761/85/211, explain 492/55/137, definition 363/40/101, commandstop 230/26/64, audiobook 172/19/48
8 factoid 758/84/210, repeat 421/47/117, dontcare 324/36/90, createoradd 211/24/59, game 168/19/47
9 remove 708/79/197, affirm 399/44/111, recipe 298/33/82, stock 194/22/54, hue_lightchange 161/18/45
10 negate 676/75/188, radio 397/44/110, currency 272/30/76, locations 184/21/51, querycontact 159/18/44
11 praise 565/63/157, confirm 396/44/110, podcasts 272/30/76, hue_lightoff 177/20/49, likeness 147/16/41
"""
# neutral/change/sustain of train, dev and test, then of the paper's table: train + dev, and test
ANNOMI = {
    "Alcohol": ("411/203/69", "46/22/8", "115/56/19"),
    "Smoking": ("208/92/74", "24/10/8", "58/25/21"),
    "Drug": ("130/55/22", "15/6/3", "36/16/6"),
    "Exercise": ("166/118/20", "19/13/2", "46/33/6"),
    "Medicine": ("310/133/84", "35/15/9", "87/37/23"),
    "Anxiety": ("72/23/4", "8/3/0", "20/7/1"),
}
ANNOMI_TABLE = {
    "Alcohol": ("457/225/77", "115/56/19"),
    "Smoking": ("232/102/82", "58/25/21"),
    "Drug": ("145/61/25", "36/16/6"),
    "Exercise": ("185/131/22", "46/33/6"),
    "Medicine": ("345/148/93", "87/37/23"),
    "Anxiety": ("80/26/4", "20/7/1"),
}
HEADER = "topic,interlocutor,utterance_text,client_talk_type\n"


def talk(*splits: Split) -> str:
    counts = sum((split.counts() for split in splits), Counter())
    return "/".join(str(counts[label]) for label in ("neutral", "change", "sustain"))


@needs_data
def test_hwu64_counts() -> None:
    found = []
    for task in hwu64(DATA):
        train, valid, test = task.train.counts(), task.valid.counts(), task.test.counts()
        cells = {f"{label} {train[label]}/{valid[label]}/{test[label]}" for label in task.labels}
        found.append((task.name, cells))
    lines = (line.partition(" ") for line in HWU64.strip().splitlines())
    assert found == [(f"Split{split}", set(cells.split(", "))) for split, _, cells in lines]


@needs_data
def test_annomi_counts() -> None:
    tasks = annomi(DATA).tasks
    assert {task.name: tuple(map(talk, (task.train, task.valid, task.test))) for task in tasks} == ANNOMI


@needs_data
@pytest.mark.parametrize("seed", [0, 7])
def test_the_raw_csv_gives_the_papers_domain_table(seed: int) -> None:
    tasks = annomi_from_csv(DATA / ANNOMI_CSV, seed).tasks
    assert {task.name: (talk(task.train, task.valid), talk(task.test)) for task in tasks} == ANNOMI_TABLE


@needs_data
def test_seed_0_of_the_raw_csv_is_the_authors_own_split() -> None:
    raw = DATA / ANNOMI_CSV
    assert annomi_from_csv(raw, 0).tasks == annomi(DATA).tasks
    assert annomi_from_csv(raw, 1).tasks != annomi(DATA).tasks


@needs_data
@pytest.mark.parametrize(
    ("order", "splits"), [(None, "0 1 2 3 4"), ("1", "0 1 2 3 4"), ("2", "5 4 2 3 1"), ("3", "11 6 10 8 7")]
)
def test_hwu64_orders(order: str | None, splits: str) -> None:
    stream = load_stream("hwu64", order=order, data_dir=DATA)
    assert [task.name for task in stream] == [f"Split{split}" for split in splits.split()]
    assert (stream.scenario, len(stream.labels)) == ("class-incremental", 25)


@needs_data
@pytest.mark.parametrize("name", ["annomi", "annomi-raw"])
@pytest.mark.parametrize(
    ("order", "domains"),
    [
        (None, "Alcohol Smoking Drug Exercise Medicine Anxiety"),
        ("1", "Alcohol Smoking Drug Exercise Medicine Anxiety"),
        ("2", "Anxiety Medicine Alcohol Exercise Smoking Drug"),
        ("3", "Drug Exercise Medicine Smoking Anxiety Alcohol"),
    ],
)
def test_annomi_orders(name: str, order: str | None, domains: str) -> None:
    stream = load_stream(name, order=order, data_dir=DATA)
    assert [task.name for task in stream] == domains.split()
    assert (stream.scenario, stream.labels) == ("domain-incremental", ("change", "neutral", "sustain"))


def plant(folder: Path, content: str) -> None:
    folder.mkdir(parents=True)
    for part in ("train", "dev", "test"):
        (folder / f"{part}.json").write_text(content)


@pytest.mark.parametrize("folder", ["hwu64", "hwu64_json"])
def test_either_folder_name_and_the_labels_of_the_files(tmp_path: Path, folder: str) -> None:
    rows = json.dumps({"17": {"intent": "sing", "sentence": "a song"}})
    for split in (10, 2):
        plant(tmp_path / folder / f"Split{split}", rows)
    split = Split(("a song",), ("sing",))
    expected = tuple(Task(name, split, split, split) for name in ("Split2", "Split10"))
    assert hwu64(tmp_path).tasks == expected


def test_annomi_under_the_authors_folder_name(tmp_path: Path) -> None:
    for domain in ANNOMI:
        plant(tmp_path / "annomi_strat_json" / domain, '{"1": {"polarity": "change", "sentence": "I will."}}')
    assert {task.name: task.labels for task in annomi(tmp_path)} == dict.fromkeys(ANNOMI, ("change",))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError) as error:
        hwu64(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: no folder hwu64 or hwu64_json; run `holdfast data get hwu64` or pass another --data-dir"
    )


def test_a_folder_without_splits(tmp_path: Path) -> None:
    (tmp_path / "hwu64").mkdir()
    with pytest.raises(HoldfastError, match=r"hwu64/Split0: not found; run `holdfast data get hwu64`"):
        hwu64(tmp_path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "annomi").mkdir()
    with pytest.raises(HoldfastError, match=r"annomi/Alcohol/train.json: not found; run `holdfast data get"):
        annomi(tmp_path)


@pytest.mark.parametrize(
    "content", ['{"1": {"sen', "[]", "3", '{"1": {"sentence": "x"}}', '{"1": ["x", "y"]}', '{"1": "x"}']
)
def test_a_file_of_another_shape(tmp_path: Path, content: str) -> None:
    plant(tmp_path / "hwu64" / "Split0", content)
    with pytest.raises(HoldfastError) as error:
        hwu64(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}/hwu64/Split0/train.json: not a JSON object of rows with sentence and intent;"
        " delete it and run `holdfast data get hwu64`"
    )


def rows(topic: str, who: str = "client", times: int = 10) -> str:
    return "".join(
        f"{topic},{who},{label},{label}\n" for label in ("change", "neutral") for _ in range(times)
    )


def test_topics_go_to_the_first_domain_they_name(tmp_path: Path) -> None:
    topics = [
        "smoking cessation; reducing alcohol consumption",
        "smoking cessation ",
        "reducing drug use",
        "weight loss; diet",
        "asthma management",
        "Being assertive with flatmate",
    ]
    path = tmp_path / "raw.csv"
    path.write_text(
        HEADER + "".join(map(rows, topics)) + rows("reducing gambling") + rows("diabetes", "therapist")
    )
    sizes = {task.name: (len(task.train), len(task.valid), len(task.test)) for task in annomi_from_csv(path)}
    assert sizes == dict.fromkeys(ANNOMI, (14, 2, 4))


def test_a_csv_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"raw\.csv: not found; run `holdfast data get annomi-raw`"):
        annomi_from_csv(tmp_path / "raw.csv")


def test_a_csv_without_one_of_the_domains(tmp_path: Path) -> None:
    path = tmp_path / "raw.csv"
    path.write_text(HEADER + rows("reducing alcohol"))
    with pytest.raises(HoldfastError) as error:
        annomi_from_csv(path)
    assert str(error.value) == (
        f"{path}: a domain has too few client utterances to split;"
        " delete the file and run `holdfast data get annomi-raw`"
    )
