"""A small hub on this machine: the endpoints that huggingface_hub asks when it pushes and fetches."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


class Hub:
    """Repositories in memory: every commit is a set of files."""

    def __init__(self) -> None:
        self.commits: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.large: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.next: dict[str, dict[str, bytes]] = {}
        """What is committed to a repository as soon as somebody has asked about it."""
        self.url = ""

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        number = len(self.commits[repo])
        sha = hashlib.sha1(f"{repo} {number}".encode(), usedforsecurity=False).hexdigest()
        self.commits[repo].append((sha, files))
        return sha

    def at(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        every = self.commits.get(repo, [])
        if revision == "main":
            return every[-1] if every else None
        return next((one for one in every if one[0] == revision), None)


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def reply(self, value: Any = None, status: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, kind: str) -> None:
        self.reply({"error": f"{kind} not found"}, 404, X_Error_Code=kind, X_Error_Message=f"{kind}: no such")

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self) -> None:
        hub, path, sent = self.hub, unquote(urlsplit(self.path).path), self.body()
        hub.asked.append(f"POST {path}")
        if self.headers.get("Authorization") != "Bearer hf_right" and path != "/api/validate-yaml":
            return self.reply({"error": "Invalid token"}, 401)
        if path == "/api/repos/create":
            asked = json.loads(sent)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            known = repo in hub.commits
            hub.commits.setdefault(repo, [])
            if not known:
                hub.commit(repo, {})
            return self.reply({"url": f"{hub.url}/{repo}", "id": repo}, 409 if known else 200)
        if path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(sent)["objects"]
            actions = [
                {**one, "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}} for one in objects
            ]
            return self.reply({"transfer": "basic", "objects": actions})
        _, _, _, owner, name, what, _ = path.split("/", 6)
        repo = f"{owner}/{name}"
        if what == "preupload":
            kinds = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(sent)["files"]
            ]
            return self.reply({"files": kinds})
        files = dict(hub.commits[repo][-1][1])
        for line in sent.splitlines():
            step = json.loads(line)
            key, value = step["key"], step["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = hub.large[value["oid"]]
            elif key == "deletedFile":
                files.pop(value["path"])
        sha = hub.commit(repo, files)
        return self.reply({"commitUrl": f"{hub.url}/{repo}/commit/{sha}", "commitOid": sha, "success": True})

    def do_PUT(self) -> None:
        sent = self.body()
        oid = self.path.rpartition("/")[2]
        assert hashlib.sha256(sent).hexdigest() == oid
        self.hub.large[oid] = sent
        self.reply({})

    def do_GET(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if parts[0] == "api":
            repo, rest = "/".join(parts[2:4]), parts[4:]
            if repo not in hub.commits:
                return self.missing("RepoNotFound")
            found = hub.at(repo, rest[1] if len(rest) > 1 else "main")
            if found is None:
                return self.missing("RevisionNotFound")
            sha, files = found
            if rest[:1] == ["tree"]:
                tree = [
                    {
                        "type": "file",
                        "path": name,
                        "size": len(data),
                        "oid": hashlib.sha1(data, usedforsecurity=False).hexdigest(),
                    }
                    for name, data in sorted(files.items())
                ]
                return self.reply(tree)
            siblings = [{"rfilename": name, "size": len(data)} for name, data in sorted(files.items())]
            if repo in hub.next:
                hub.commit(repo, hub.next.pop(repo))
            return self.reply({"id": repo, "sha": sha, "siblings": siblings, "private": False, "tags": []})
        repo, revision, name = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        found = hub.at(repo, revision)
        if found is None or name not in found[1]:
            return self.missing("EntryNotFound")
        sha, data = found[0], found[1][name]
        etag = f'"{hashlib.sha1(data, usedforsecurity=False).hexdigest()}"'
        return self.reply(data, ETag=etag, X_Repo_Commit=sha)

    do_HEAD = do_GET


@contextmanager
def local_hub() -> Iterator[Hub]:
    """Run a hub on a free port."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
