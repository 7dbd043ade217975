"""The bodies of requests and answers, and the limits on what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from holdfast.data.readers import Row, pairs_of
from holdfast.data.tasks import check_labels, printable, whole
from holdfast.errors import HoldfastError
from holdfast.runtime.answers import Answer, Asked
from holdfast.serve.serving import ServiceLimits

FILES = {
    "text/csv": ".csv",
    "text/tab-separated-values": ".tsv",
    "application/jsonl": ".jsonl",
    "application/x-ndjson": ".jsonl",
}
FORM = "multipart/form-data"


class Strict(BaseModel):
    """A body without unknown entries."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """What is wrong with a request."""

    error: str = Field(description="One line: what is wrong and what to do.")


class PredictRequest(Strict):
    """Texts to classify, and what to answer for each."""

    texts: list[str] = Field(min_length=1, description="The texts; at most 256 unless the service says else.")
    top: int = Field(1, ge=1, le=50, description="How many labels to return for each text.")
    reject: float | None = Field(
        None,
        ge=0.5,
        le=0.99,
        description="A text that lies farther out than this share of known sentences (left-out sentences of "
        "the lessons) is unknown.",
    )
    min_probability: float | None = Field(
        None, ge=0, le=1, description="A text whose best label is less probable is unknown."
    )
    cover: float | None = Field(
        None, ge=0.5, le=0.99, description="Also return a set of labels that holds the right one this often."
    )

    def asked(self) -> Asked:
        """Return what is asked for each text."""
        return Asked(self.top, self.reject, self.min_probability, self.cover)


class Likely(BaseModel):
    """A label and its probability."""

    label: str
    probability: float


class Predicted(BaseModel):
    """The answer to one text."""

    label: str | None = Field(description="null if the text is unknown.")
    probability: float = Field(description="Of the best label, even if the text is unknown.")
    top: list[Likely] = Field(description="The most probable labels, best first.")
    set: list[str] | None = Field(None, description="The prediction set, if `cover` was given.")
    why: str | None = Field(None, description="Why the text is unknown.")


class PredictResponse(BaseModel):
    """The answers, in the order of the texts, all by one generation."""

    generation: int
    answers: list[Predicted]


class LabelledRow(Strict):
    """A text and its label."""

    text: str
    label: str


class LearnRequest(Strict):
    """Labelled rows to teach: new labels, more examples of known ones, or both."""

    rows: list[LabelledRow] = Field(min_length=1)
    name: str = Field("rows", min_length=1, max_length=100, description="What the lesson is called.")
    again: bool = Field(False, description="Count rows again that were learnt before.")


class CorrectRequest(Strict):
    """Rows that were taught by mistake: with `to`, they get that label; without it, they are taken out."""

    rows: list[LabelledRow] = Field(min_length=1, description="The rows as they were taught.")
    to: str | None = Field(None, min_length=1, description="The right label.")
    again: bool = Field(False, description="Correct rows again that were corrected before.")


class RenameRequest(Strict):
    """A label and its new name."""

    old: str = Field(min_length=1)
    new: str = Field(min_length=1)


class MergeRequest(Strict):
    """Labels that mean the same, and the one name they get."""

    labels: list[str] = Field(min_length=1)
    into: str = Field(min_length=1)


class ForgetRequest(Strict):
    """A label to forget."""

    label: str = Field(min_length=1)
    purge: bool = Field(False, description="Also delete the older generations, which still know it.")


class PromoteRequest(Strict):
    """A generation to make current."""

    generation: int = Field(ge=1, le=999_999)


class JobReport(BaseModel):
    """A job's report. It holds no text."""

    model_config = ConfigDict(extra="allow")
    id: str
    kind: str
    status: str = Field(description="waiting, running, done, failed or stopped.")
    started: float = Field(description="Seconds since 1970.")
    labels: list[str] | None = Field(None, description="The labels it is about; the first of them, if many.")
    seconds: float | None = None
    doing: str | None = None
    done: int | None = None
    total: int | None = None
    notes: list[str] | None = None
    result: dict[str, Any] | None = None
    error: str | None = None


class JobList(BaseModel):
    """The jobs of a learner, newest first."""

    jobs: list[JobReport]


class LabelCount(BaseModel):
    """A label and how many sentences taught it."""

    label: str
    sentences: int | None = Field(description="null if the learner does not count them.")


class LabelList(BaseModel):
    """The labels of the generation that answers."""

    generation: int
    labels: list[LabelCount]
    fixed: bool = Field(False, description="Whether it is an exported artefact, which cannot change.")


class SuggestRequest(Strict):
    """Unlabelled texts, of which some are suggested for labelling. They are not kept."""

    texts: list[str] = Field(min_length=1)
    n: int = Field(20, ge=1, le=1000, description="How many to suggest.")


class GenerationInfo(BaseModel):
    """One generation."""

    generation: int
    current: bool
    written: float = Field(description="Seconds since 1970.")
    megabytes: float
    labels: list[str]
    lessons: int
    parent: int | None = Field(
        None, description="The generation that it was taught on, if that is known. It may not be kept."
    )
    made: str = Field(
        "", description="What made it, such as learn: week2; empty if its history does not say."
    )
    wrong: str | None = Field(None, description="Why it cannot be read, if it cannot.")


class GenerationList(BaseModel):
    """The generations that are kept, oldest first."""

    current: int | None
    generations: list[GenerationInfo]


class Health(BaseModel):
    """The state of the service."""

    status: str
    generation: int | None = None
    learners: int | None = None
    problem: str | None = None


class Bad(HoldfastError):
    """A request that cannot be done as it is."""


class TooLarge(HoldfastError):
    """A request beyond a limit."""


def check_sizes(texts: Sequence[str], limits: ServiceLimits, most: int | None = None) -> None:
    """Raise an error if there are too many texts, or one is empty, too long or not UTF-8."""
    if most is not None and len(texts) > most:
        raise TooLarge(f"{len(texts):,} texts; send at most {most:,} in one request")
    for number, text in enumerate(texts, start=1):
        if not text.strip():
            raise Bad(f"text {number} is empty; leave it out")
        if len(text) > limits.characters:
            raise TooLarge(f"text {number} has {len(text):,} characters, more than {limits.characters:,}")
        if not whole(text):
            raise Bad(f"text {number} has an unpaired surrogate; send plain UTF-8 text")


def check_names(labels: Iterable[str], limits: ServiceLimits) -> None:
    """Raise an error if there are too many labels, or one cannot be a label."""
    every = dict.fromkeys(labels)
    if len(every) > limits.labels:
        raise TooLarge(f"{len(every):,} labels; teach at most {limits.labels:,} in one request")
    for label in every:
        if not label.strip():
            raise Bad("a label is empty; give every row one")
        if len(label) > limits.label:
            raise TooLarge(f"a label has {len(label):,} characters, more than {limits.label:,}")
        if not whole(label):
            raise Bad("a label has an unpaired surrogate; send plain UTF-8 text")
    try:
        check_labels(every)
    except HoldfastError as error:
        raise Bad(str(error)) from error


def check_rows(rows: Sequence[Row], limits: ServiceLimits) -> None:
    """Raise an error if rows cannot be learnt."""
    check_sizes([row.text for row in rows], limits)
    check_names((row.label for row in rows), limits)


class Lessons(Strict):
    """Rows to learn, from JSON or from a file."""

    rows: list[Row]
    name: str
    again: bool = False


async def lesson_in(request: Request, text_column: str, label_column: str, again: bool = False) -> Lessons:
    """Return the rows of a request: JSON, a form with a file, or a file as the body. Nothing is written.

    The columns are those of a file. JSON may ask for `again` in the body too.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().casefold()
    columns = {"text_column": text_column, "label_column": label_column}
    try:
        if kind == "application/json":
            try:
                found = LearnRequest.model_validate_json(await request.body())
            except ValidationError as error:
                raise Bad(first_problem(error.errors())) from None
            rows = [Row(row.text, row.label) for row in found.rows]
            return Lessons(rows=rows, name=printable(found.name), again=found.again or again)
        if kind == FORM:
            name, data = await _uploaded(request)
        elif kind in FILES:
            name, data = f"rows{FILES[kind]}", await request.body()
        else:
            raise Bad(f"send application/json, {FORM} with a file, or one of: {', '.join(FILES)}")
        rows = await asyncio.to_thread(pairs_of, name, data, **columns)  # others are answered meanwhile
        return Lessons(rows=rows, name=printable(name), again=again)
    except HoldfastError as error:
        if isinstance(error, Bad | TooLarge):
            raise
        raise Bad(_unquoted(str(error), columns.values())) from error


def _unquoted(said: str, columns: Iterable[str]) -> str:
    """Return what is wrong with a file, without the names of its columns: they may be its first row."""
    for column in columns:
        before, missing, _ = said.partition(f"no column {column!r}")
        if missing:
            return f"{before}{missing}; the first line names them: choose with text_column, label_column"
    return said


async def _uploaded(request: Request) -> tuple[str, bytes]:
    """Return the name and content of the file of a form, which stays in memory."""
    try:
        parser = MultiPartParser(request.headers, request.stream(), max_files=1, max_fields=10)
        parser.spool_max_size = 2**62  # the body is bounded already; a spooled file would be on disk
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, AssertionError):
        raise Bad("the form cannot be read; send it as curl -F file=@FILE does") from None
    files = [one for _, one in form.multi_items() if isinstance(one, UploadFile)]
    if len(files) != 1:
        raise Bad("the form holds no file; send one, called file")
    name = PurePath((files[0].filename or "").replace("\\", "/")).name[:100]
    return name or "rows", await files[0].read()


def first_problem(errors: Sequence[Any]) -> str:
    """Return what is wrong with a body, without quoting it."""
    error = errors[0]
    if error["type"] == "json_invalid":
        return "the body is not JSON"  # its place is a number of characters
    if error["type"] == "missing" and error["loc"][0] == "query":
        name = error["loc"][-1]
        return f"{name} is missing in the address (?{name}=...)"
    place = ".".join(str(part) for part in error["loc"] if part not in ("body", "query", "path"))
    where = f"{printable(place[:100])}: " if place else ""
    return f"{where}{printable(error['msg'])}"


def as_json(answer: Answer, asked: Asked) -> dict[str, Any]:
    """Return an answer as JSON, without its text."""
    top = [{"label": label, "probability": round(value, 6)} for label, value in answer.top]
    found: dict[str, Any] = {
        "label": answer.label,
        "probability": round(answer.probability, 6),
        "top": top,
    }
    if answer.set is not None:
        found["set"] = answer.set
    if answer.label is None:
        found["why"] = why_unknown(answer, asked)
    return found


def why_unknown(answer: Answer, asked: Asked) -> str:
    """Return why an answer has no label."""
    if asked.least is not None and answer.probability < asked.least:
        return f"its best label has a probability of {answer.probability:.3f}, below {asked.least:g}"
    if asked.reject is not None:
        return f"it is farther from every label than {100 * asked.reject:g} % of known sentences"
    return answer.error or "no label fits"
