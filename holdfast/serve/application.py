"""The service as an ASGI application: its routes, and what they share."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from holdfast.data.readers import Row
from holdfast.errors import HoldfastError
from holdfast.runtime.artefact import is_artefact
from holdfast.serve import bodies
from holdfast.serve.bodies import Bad, Problem, TooLarge
from holdfast.serve.generations import listed
from holdfast.serve.guard import Guard
from holdfast.serve.jobs import Jobs, Report, TooMany
from holdfast.serve.line import Full
from holdfast.serve.meters import Meters
from holdfast.serve.serving import Serving
from holdfast.serve.states import NoSuch, Ready, Served, States, Unloadable
from holdfast.serve.worker import FOLDERS
from holdfast.storage.files import Busy
from holdfast.storage.generations import Store, roll_back

PAGE = files("holdfast.serve") / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SAID = {
    400: "The request cannot be read.",
    404: "There is no such learner or job.",
    408: "The request did not arrive in time.",
    413: "The request is larger than a limit.",
    421: "The service is not called by that name.",
    422: "The request cannot be done as it is.",
    429: "Too much is waiting; see Retry-After.",
    503: "The learner cannot answer now.",
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": said} for status, said in SAID.items()
}
FIXED: dict[int | str, dict[str, Any]] = {
    409: {"model": Problem, "description": "Another process works on the learner, or it cannot change."}
}
WRITING: dict[int | str, dict[str, Any]] = PROBLEMS | {
    401: {"model": Problem, "description": "The token is missing or wrong."},
    403: {"model": Problem, "description": "A page of another site sent the request."},
}
WRITING |= FIXED
log = logging.getLogger("holdfast.serve")
DESCRIPTION = """Classify texts with a learner that goes on learning.

Whatever changes a learner needs the token: `Authorization: Bearer TOKEN`. Learning and corrections are jobs:
they return 202 and a report to follow at `/v1/jobs/ID`. No text is logged or stored."""


class Fixed(HoldfastError):
    """An exported artefact was asked to change."""


@dataclass
class Service:
    """What the routes share in one process."""

    serving: Serving
    states: States
    jobs: Jobs
    meters: Meters

    async def change(self, state: str, kind: str, arguments: Mapping[str, Any]) -> Report:
        """Start a job that changes a learner."""
        path = self.states.path(state)
        if is_artefact(path):
            raise Fixed("this is an exported artefact, which cannot change; serve the learner it comes from")
        arguments = {**arguments, "model": self.serving.model}
        report = await asyncio.to_thread(self.jobs.start, state, kind, path, arguments)
        self.meters.jobs.labels(kind).inc()
        return report

    async def known(self, state: str) -> Served:
        """Return a learner; raise `Bad` if it has not been taught anything."""
        one = await self.states.one(state)
        if not one.loaded.labels:
            raise Bad("this learner has no labels yet; teach it some")
        return one


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Here = Annotated[Service, Depends(_service)]
Name = Annotated[
    str, Query(max_length=100, description="Name of the learner, if the service has several of them.")
]
router = APIRouter(prefix="/v1")


# ---- asking -------------------------------------------------------------------------------------------


@router.post("/predict", response_model=bodies.PredictResponse, responses=PROBLEMS)
async def predict(here: Here, body: bodies.PredictRequest, state: Name = "") -> Response:
    """Classify texts."""
    bodies.check_sizes(body.texts, here.serving.limits, here.serving.limits.texts)
    asked = body.asked()
    found = await here.states.ask(state, body.texts, asked)
    answers = [bodies.as_json(answer, asked) for answer in found.answers]
    return _json({"generation": found.generation, "answers": answers})


@router.get("/labels", responses=PROBLEMS)
async def labels(here: Here, state: Name = "") -> bodies.LabelList:
    """List the labels, with the number of sentences that taught each."""
    loaded = (await here.states.one(state)).loaded
    counts = loaded.counts or {}
    every = [bodies.LabelCount(label=label, sentences=counts.get(label)) for label in loaded.labels]
    fixed = loaded.fixed or here.serving.read_only
    return bodies.LabelList(generation=loaded.generation, labels=every, fixed=fixed)


@router.get("/generations", responses=PROBLEMS)
async def generations(here: Here, state: Name = "") -> bodies.GenerationList:
    """List the generations that are kept."""
    path = (await here.states.one(state)).path
    return await asyncio.to_thread(listed, path)


@router.get("/states", responses=PROBLEMS)
async def states(here: Here) -> list[str]:
    """List the learners of a service that has several, by name."""
    return await asyncio.to_thread(here.states.names)


@router.get("/jobs", responses=PROBLEMS, response_model_exclude_none=True)
async def jobs(here: Here, state: Name = "") -> bodies.JobList:
    """List the jobs of a learner, newest first."""
    here.states.path(state)
    return bodies.JobList.model_validate({"jobs": await asyncio.to_thread(here.jobs.all, state)})


@router.get("/jobs/{number}", responses=PROBLEMS, response_model_exclude_none=True)
async def job(here: Here, number: str, state: Name = "") -> bodies.JobReport:
    """Report on a job."""
    here.states.path(state)
    found = await asyncio.to_thread(here.jobs.report, state, number)
    if found is None:
        raise NoSuch("there is no such job")
    return bodies.JobReport.model_validate(found)


# ---- changing -----------------------------------------------------------------------------------------

CHANGE: dict[str, Any] = {"status_code": 202, "responses": WRITING, "response_model": bodies.JobReport}
CHANGE |= {"response_model_exclude_none": True}
FILE = {"schema": {"type": "string"}}
UPLOAD = {
    "schema": {
        "type": "object",
        "required": ["file"],
        "properties": {"file": {"type": "string", "contentMediaType": "application/octet-stream"}},
    }
}
TAUGHT = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/LearnRequest"}},
            bodies.FORM: UPLOAD,
            **dict.fromkeys(bodies.FILES, FILE),
        },
    },
}
Column = Annotated[str, Query(max_length=200, description="Column of an uploaded file.")]


@router.post("/learn", **CHANGE, openapi_extra=TAUGHT)
async def learn(
    request: Request,
    here: Here,
    state: Name = "",
    text_column: Column = "text",
    label_column: Column = "label",
    again: Annotated[bool, Query(description="Count rows again that were learnt before.")] = False,
) -> Report:
    """Teach rows, or an uploaded CSV, TSV or JSONL file: a job."""
    lesson = await bodies.lesson_in(request, text_column, label_column, again)
    await asyncio.to_thread(bodies.check_rows, lesson.rows, here.serving.limits)
    return await here.change(state, "learn", lesson.model_dump())


@router.post("/correct", **CHANGE)
async def correct(here: Here, body: bodies.CorrectRequest, state: Name = "") -> Report:
    """Take rows out again, or give them another label: a job, as exact as the learner's head allows."""
    rows = [Row(row.text, row.label) for row in body.rows]
    bodies.check_rows(rows, here.serving.limits)
    bodies.check_names([] if body.to is None else [body.to], here.serving.limits)
    await here.known(state)
    return await here.change(state, "correct", {"rows": rows, "to": body.to, "again": body.again})


@router.post("/suggest", **CHANGE)
async def suggest(here: Here, body: bodies.SuggestRequest, state: Name = "") -> Report:
    """Suggest which of some unlabelled texts to label next: a job, which changes nothing.

    The report has the places of likely new intents, in groups, and of close calls; not the texts.
    """
    bodies.check_sizes(body.texts, here.serving.limits, here.serving.limits.suggest)
    await here.known(state)
    return await here.change(state, "suggest", body.model_dump())


@router.post("/labels/rename", **CHANGE)
async def rename(here: Here, body: bodies.RenameRequest, state: Name = "") -> Report:
    """Rename a label: a job."""
    bodies.check_names([body.old, body.new], here.serving.limits)
    await here.known(state)
    return await here.change(state, "rename", body.model_dump())


@router.post("/labels/merge", **CHANGE)
async def merge(here: Here, body: bodies.MergeRequest, state: Name = "") -> Report:
    """Unite labels under one of them or under a new name: a job."""
    bodies.check_names([*body.labels, body.into], here.serving.limits)
    await here.known(state)
    return await here.change(state, "merge", body.model_dump())


@router.post("/labels/forget", **CHANGE)
async def forget(here: Here, body: bodies.ForgetRequest, state: Name = "") -> Report:
    """Forget a label: a job. Its result says what still carries traces of it."""
    bodies.check_names([body.label], here.serving.limits)
    await here.known(state)
    return await here.change(state, "forget", body.model_dump())


@router.post("/generations/compare", **CHANGE, openapi_extra=TAUGHT)
async def compare(
    request: Request,
    here: Here,
    first: Annotated[int, Query(ge=1, le=999_999, description="A generation.")],
    second: Annotated[int, Query(ge=1, le=999_999, description="The generation compared with it.")],
    state: Name = "",
    text_column: Column = "text",
    label_column: Column = "label",
) -> Report:
    """Compare two generations on labelled rows: a job, which changes nothing.

    The report has the scores of each label, the answers that changed and the confusions.
    """
    lesson = await bodies.lesson_in(request, text_column, label_column)
    await asyncio.to_thread(bodies.check_rows, lesson.rows, here.serving.limits)
    one = await here.known(state)
    kept = await asyncio.to_thread(lambda: Store(one.path).generations)
    if missing := [number for number in (first, second) if number not in kept]:
        raise Bad(f"generation {missing[0]} is not kept; there are {', '.join(map(str, kept))}")
    return await here.change(state, "compare", {"rows": lesson.rows, "first": first, "second": second})


@router.post("/generations/promote", responses=WRITING)
async def promote(here: Here, body: bodies.PromoteRequest, state: Name = "") -> bodies.GenerationList:
    """Make a generation current: roll back to an older one, or forward again. None is deleted."""
    one = await here.known(state)
    if one.loaded.fixed:
        raise Fixed("an exported artefact has one generation")
    try:
        await asyncio.to_thread(roll_back, one.path, body.generation)
    except Busy:
        raise
    except HoldfastError as error:
        raise Bad(f"generation {body.generation} is not one of those that are kept and whole") from error
    await here.states.refresh(one)
    return await asyncio.to_thread(listed, one.path)


@router.delete("/jobs/{number}", responses=WRITING, response_model_exclude_none=True)
async def stop_job(here: Here, number: str, state: Name = "") -> bodies.JobReport:
    """Stop a job. The learner stays as it was before, unless the job has committed already."""
    here.states.path(state)
    found = await asyncio.to_thread(here.jobs.stop, state, number)
    if found is None:
        raise NoSuch("there is no such job")
    return bodies.JobReport.model_validate(found)


# ---- the service itself -------------------------------------------------------------------------------

own = APIRouter()


@own.get("/healthz", response_model_exclude_none=True)
async def healthz() -> bodies.Health:
    """Say that the process is alive."""
    return bodies.Health(status="ok")


@own.get("/readyz", response_model_exclude_none=True, responses={503: {"model": bodies.Health}})
async def readyz(here: Here) -> Response:
    """Say whether the service can answer, with which generation, and what is wrong with a newer one."""
    loaded = here.states.loaded
    found: dict[str, Any] = {"status": "ready", "learners": len(loaded)}
    if not here.serving.many:
        if not loaded:
            return _json({"status": "loading"}, 503)
        found["generation"] = loaded[0].loaded.generation
        if loaded[0].wrong:
            found["problem"] = "the newest generation cannot be loaded; see the service's log"
    return _json(found)


@own.get("/metrics", response_class=Response)
async def metrics(here: Here) -> Response:
    """Return the meters in the text format of Prometheus."""
    page = await asyncio.to_thread(here.meters.page)
    return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")


def _file(name: str) -> Callable[[], Response]:
    data = (PAGE / name).read_bytes()
    kind = KINDS[Path(name).suffix]

    def file() -> Response:
        return Response(data, media_type=kind, headers={"cache-control": "no-cache"})

    return file


# ---- errors -------------------------------------------------------------------------------------------


STATUSES: dict[type[HoldfastError], int] = {
    NoSuch: 404,
    Unloadable: 503,
    TooLarge: 413,
    TooMany: 429,
    Fixed: 409,
    Bad: 422,
}


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(value, ensure_ascii=False, allow_nan=False).encode(errors="backslashreplace")
    return Response(body, status, headers, "application/json")


async def _error(request: Request, error: Exception) -> Response:
    """Return an error as one line."""
    if isinstance(error, Full | TooMany):
        seconds = error.retry if isinstance(error, Full) else 1
        return _json({"error": str(error)}, 429, {"retry-after": str(seconds)})
    if isinstance(error, Busy):
        return _json({"error": "another process works on this learner; try again when it has ended"}, 409)
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return _json({"error": str(error)}, status)
    if FOLDERS.search(str(error)):  # it says where files are, which is not for everybody
        log.error("%s", error)
        return _json({"error": "the learner cannot be read or changed; the service's log says why"}, 503)
    return _json({"error": str(error)}, 422)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return _json({"error": bodies.first_problem(error.errors())}, 422)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": str(error.detail)}, error.status_code, error.headers)


# ---- the application ----------------------------------------------------------------------------------


def application(serving: Serving, ready: Ready | None = None) -> Guard:
    """Return the service for one process; `ready` holds learners that are loaded already."""
    meters = Meters()
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every form that is cut off

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        states = States(serving, meters.happened(many=serving.many), ready)
        jobs = Jobs(Path(serving.reports), threads=serving.threads, most=serving.limits.jobs)
        app.state.service = Service(serving, states, jobs, meters)
        await states.start()
        yield
        await states.stop()
        await asyncio.to_thread(jobs.end, serving.limits.grace)

    app = FastAPI(
        title="Holdfast",
        version=version("holdfast"),
        description=DESCRIPTION,
        docs_url=None,  # FastAPI's pages load their scripts from a CDN
        redoc_url=None,
        redirect_slashes=False,  # a redirect names the host that the client has sent
        lifespan=lifespan,
    )
    app.include_router(router)
    app.include_router(own)
    for path, name in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_api_route(path, _file(name), include_in_schema=False, response_class=Response)
    for name in ("page.css", "page.js", "docs.js", "icon.svg"):
        app.add_api_route(f"/static/{name}", _file(name), include_in_schema=False, response_class=Response)
    for kind, handler in (
        (RequestValidationError, _invalid),
        (HTTPException, _refused),
        (HoldfastError, _error),
        (Full, _error),
    ):
        app.add_exception_handler(kind, handler)
    _describe(app)
    return Guard(app, serving, meters)


def _describe(app: FastAPI) -> None:
    """Add to the OpenAPI schema what the routes do not say: the token, and the body of /v1/learn."""
    made = app.openapi

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = made()
            parts = found["components"]
            own = bodies.LearnRequest.model_json_schema(ref_template="#/components/schemas/{model}")
            parts["schemas"] |= own.pop("$defs", {}) | {"LearnRequest": own}
            parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for operations in found["paths"].values():
                for operation in operations.values():
                    if "401" in operation["responses"]:
                        operation["security"] = [{"token": []}]
            for name in ("HTTPValidationError", "ValidationError"):
                parts["schemas"].pop(name, None)
        return app.openapi_schema or {}

    app.openapi = schema  # type: ignore[method-assign]
