"""The files of a deployment: they parse, and their commands are those of the command line."""

from __future__ import annotations

import json
import re
import tomllib

import yaml
from helpers.paths import ROOT
from typer.main import get_command

from holdfast.app.main import app


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, their continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines()) if word
    ]


def accepted(words: list[str]) -> None:
    """Expect the command line to accept the words after `holdfast`."""
    command = get_command(app).commands[words[0]]  # type: ignore[attr-defined]
    command.make_context(words[0], words[1:])


def test_the_dockerfile_copies_what_is_there_and_runs_a_command_that_exists() -> None:
    found = instructions()
    known = {"FROM", "ENV", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {word for word, _ in found} <= known | {"ENTRYPOINT"}
    assert found[0][0] == "FROM"
    words = [word for word, _ in found]
    assert words.index("USER") > max(place for place, word in enumerate(words) if word == "RUN"), (
        "not as root"
    )
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for word, rest in found:
        if word == "COPY":
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored, f"{source} is kept out of the build"
    entry = json.loads(dict(found)["ENTRYPOINT"])
    assert entry[0] == "holdfast"
    accepted(entry[1:])
    health = dict(found)["HEALTHCHECK"]
    compile(json.loads(health[health.index("CMD") + 3 :])[-1], "healthcheck", "exec")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = re.findall(r'"\.\[([a-z,]+)\]"', (ROOT / "Dockerfile").read_text())
    assert set(wanted.split(",")) <= set(extras)


def test_the_compose_file_serves_on_this_machine_with_a_secret_token() -> None:
    found = yaml.safe_load((ROOT / "compose.yaml").read_text())
    service = found["services"]["holdfast"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"]
    assert set(service["secrets"]) <= set(found["secrets"])
    assert {volume.partition(":")[0] for volume in service["volumes"]} <= set(found["volumes"])
    entry = json.loads(dict(instructions())["ENTRYPOINT"])
    accepted([*entry[1:], *service["command"]])
    place = service["command"][service["command"].index("--token-file") + 1]
    assert place.removeprefix("/run/secrets/") in found["secrets"]
