"""A small server on loopback that can do what servers do on bad days."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class File:
    """content, and how it is served. cut: bytes after which the connection is closed, one for each request in turn;
    pace: seconds between blocks of 1,000 bytes; length: what is said to be its length; ranges: whether it goes on."""

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: list[int] = field(default_factory=list)
    failing: int = 0
    pace: float = 0.0
    length: int | None = None
    ranges: bool = True
    say_length: bool = True
    etag: bool = True


@dataclass
class Server:
    url: str
    files: dict[str, File]
    asked: list[tuple[str, str, str | None]]  # method, path, the range asked for

    def ranges(self, path: str) -> list[str | None]:
        return [header for method, asked, header in self.asked if method == "GET" and asked == path]


@contextmanager
def serving(files: dict[str, File] | None = None, answer: Callable[[Any], bool] | None = None) -> Iterator[Server]:
    """A running server. answer: may answer a request itself, and says whether it did."""
    state = Server("", dict(files or {}), [])

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0].lstrip("/")
            state.asked.append((self.command, path, self.headers.get("Range")))
            if answer is not None and answer(self):
                return
            file = state.files.get(path, File(status=404))
            if file.failing:
                file.failing -= 1
                file = File(status=503)
            _serve(self, file)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _serve(handler: BaseHTTPRequestHandler, file: File) -> None:
    content, start, status = file.content, 0, file.status
    etag = f'"{hashlib.md5(content).hexdigest()}"'
    wanted = handler.headers.get("Range")
    same = handler.headers.get("If-Range") in (None, etag)
    if status == 200 and wanted and file.ranges and same:
        start, status = int(wanted.removeprefix("bytes=").rstrip("-")), 206
        if start >= len(content):
            status = 416
    handler.send_response(status)
    body = b"" if status == 416 else content[start:]
    if status == 206:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    if status == 416:
        handler.send_header("Content-Range", f"bytes */{len(content)}")
    if file.etag and status < 400:
        handler.send_header("ETag", etag)
    for name, value in file.headers.items():
        handler.send_header(name, value)
    if file.say_length:
        handler.send_header("Content-Length", str(len(body) if file.length is None else file.length))
    else:
        handler.send_header("Connection", "close")
    handler.end_headers()
    if handler.command == "HEAD":
        return
    stop = file.cut.pop(0) if file.cut else len(body)
    try:
        for at in range(0, min(stop, len(body)), 1000):
            handler.wfile.write(body[at : min(at + 1000, stop)])
            if file.pace:
                handler.wfile.flush()
                time.sleep(file.pace)
    except OSError:
        pass
    if stop < len(body) or not file.say_length:
        handler.close_connection = True
        handler.wfile.flush()
        handler.connection.shutdown(1)


def hub(files: dict[str, bytes], repository: str) -> Callable[[Any], bool]:
    """Answers what the clients of the Hugging Face hub ask of a data set."""
    commit = "a" * 40

    def answer(handler: Any) -> bool:
        path = handler.path.split("?")[0]
        if path.startswith(f"/api/datasets/{repository}"):
            listing = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            body: Any = {"id": repository, "sha": commit, "siblings": listing, "tags": [], "private": False}
            if "/tree/" in path:
                body = _tree(
                    files, path.partition("/tree/")[2].partition("/")[2], "recursive=true" in handler.path.lower()
                )
                if not body:
                    return False
            _send(handler, json.dumps(body).encode(), "application/json", {})
            return True
        name = path.removeprefix(f"/datasets/{repository}/resolve/").removeprefix(f"{commit}/").removeprefix("main/")
        if name in files:
            content = files[name]
            headers = {"X-Repo-Commit": commit, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
            _send(handler, content, "application/octet-stream", headers)
            return True
        return False

    return answer


def _tree(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict[str, Any]]:
    """What lies in a folder, or in all folders below it."""
    found: dict[str, dict[str, Any]] = {}
    for name, content in files.items():
        if folder and not name.startswith(f"{folder}/"):
            continue
        inside = name.removeprefix(f"{folder}/") if folder else name
        path = name if recursive or "/" not in inside else name[: len(name) - len(inside)] + inside.partition("/")[0]
        whole = path == name
        oid = hashlib.sha1(content if whole else path.encode()).hexdigest()
        found[path] = {"type": "file" if whole else "directory", "path": path, "size": len(content) * whole, "oid": oid}
    return list(found.values())


def _send(handler: Any, body: bytes, kind: str, headers: dict[str, str]) -> None:
    handler.send_response(200)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body)
