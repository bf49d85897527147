"""A hub on this machine: the endpoints that the real ``huggingface_hub`` client calls to create a repository, upload a
commit (small files inside it, weights by LFS) and download a snapshot. Tokens: "writer" may do everything, "reader" may
read; without one, only public repositories are visible.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Repository:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)

    @property
    def sha(self) -> str:
        content = b"".join(name.encode() + self.files[name] for name in sorted(self.files))
        return hashlib.sha1(content).hexdigest()


@dataclass
class Hub:
    url: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *words: Any) -> None:
        pass

    def answer(self, code: int, value: Any = None, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        content = body if value is None else json.dumps(value).encode()
        self.send_response(code)
        sized = {"Content-Length": str(len(content)), "Content-Type": "application/json", **(headers or {})}
        for name, text in sized.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def refuse(self, code: int, name: str, text: str) -> None:
        self.answer(code, {"error": text}, {"X-Error-Code": name, "X-Error-Message": text})

    def body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def visible(self, name: str) -> Repository | None:
        """The repository, unless it is not there or not for the caller; then that is answered, as the hub does."""
        found = self.hub.repositories.get(name)
        if found is not None and (not found.private or self.token() == "writer"):
            return found
        if self.token() is None:
            self.refuse(401, "RepoNotFound", "Repository not found")
        else:
            self.refuse(404, "RepoNotFound", "Repository not found")
        return None

    def do_POST(self) -> None:
        path, content = self.path.partition("?")[0], self.body()
        self.hub.requests.append(f"POST {path}")
        if path == "/api/validate-yaml":  # of a model card's head
            head = json.loads(content)["content"]
            wrong = [] if head.startswith("---\nlibrary_name:") else [{"message": "no library_name"}]
            return self.answer(400 if wrong else 200, {"errors": wrong, "warnings": []})
        if self.token() is None:
            return self.refuse(401, "", "Invalid username or password.")
        if self.token() != "writer":
            return self.refuse(403, "", "You don't have the rights to write.")
        if path == "/api/repos/create":
            asked = json.loads(content)
            name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            url = f"{self.hub.url}/{name}"
            if name in self.hub.repositories:
                return self.answer(409, {"error": "You already created this model repo", "url": url})
            private = asked.get("visibility") == "private" or bool(asked.get("private"))
            self.hub.repositories[name] = Repository(private)
            return self.answer(200, {"url": url, "name": name})
        if match := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            asked = json.loads(content)
            put = [
                {**one, "actions": {"upload": {"href": f"{self.hub.url}/objects/{one['oid']}"}}}
                for one in asked["objects"]
            ]
            return self.answer(200, {"transfer": "basic", "objects": put})
        if match := re.fullmatch(r"/api/models/(.+)/preupload/(.+)", path):
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(content)["files"]
            ]
            return self.answer(200, {"files": files})
        if match := re.fullmatch(r"/api/models/(.+)/commit/(.+)", path):
            repository = self.hub.repositories[match[1]]
            for line in content.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    repository.files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
                elif item["key"] == "lfsFile":
                    name = item["value"]["path"]
                    repository.files[name] = self.hub.objects[item["value"]["oid"]]
                    repository.lfs.add(name)
            url = f"{self.hub.url}/{match[1]}/commit/{repository.sha}"
            return self.answer(200, {"commitUrl": url, "commitOid": repository.sha, "success": True})
        return self.refuse(404, "", f"no such endpoint: {path}")

    def do_PUT(self) -> None:
        content = self.body()
        oid = self.path.rpartition("/")[2]
        if hashlib.sha256(content).hexdigest() != oid:
            return self.refuse(400, "", "another content than was promised")
        self.hub.objects[oid] = content
        return self.answer(200, {})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(f"{self.command} {path}")
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            found = self.visible(match[1])
            if found is None:
                return None
            if match[2] not in (None, "main", found.sha):
                return self.refuse(404, "RevisionNotFound", "Revision not found")
            siblings = [{"rfilename": name, "size": len(found.files[name])} for name in sorted(found.files)]
            return self.answer(
                200,
                {"id": match[1], "modelId": match[1], "sha": found.sha, "private": found.private, "siblings": siblings},
            )
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+).*", path):
            found = self.visible(match[1])
            if found is None:
                return None
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in sorted(found.files.items())
            ]
            return self.answer(200, rows)
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            found = self.visible(match[1])
            if found is None:
                return None
            if match[3] not in found.files:
                return self.refuse(404, "EntryNotFound", "Entry not found")
            content = found.files[match[3]]
            tag = hashlib.sha256(content).hexdigest()
            headers = {"ETag": f'"{tag}"', "X-Repo-Commit": found.sha, "Content-Type": "application/octet-stream"}
            return self.answer(200, None, headers, content)
        return self.refuse(404, "", f"no such endpoint: {path}")

    do_HEAD = do_GET


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that answers as long as the context lasts."""
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub = handler.hub = Hub(f"http://127.0.0.1:{server.server_address[1]}")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
