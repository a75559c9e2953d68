"""A small Hugging Face hub on 127.0.0.1 for tests. Small files come from the hub itself; large ones (Git LFS) from a redirect to
another host, localhost, as the real one does. A test can make it misbehave, and sees every request."""
import hashlib
import http.server
import json
import os
import threading
import time
import urllib.parse


def git_blob(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def sharded_files(files, parts=3, size=100_000):
    """The files of a model, with several files of weights, which are not real, instead of its own."""
    shards = {f"model-{i:05}-of-{parts:05}.safetensors": os.urandom(size) for i in range(1, parts + 1)}
    index = {"metadata": {}, "weight_map": {f"tensor.{i}": name for i, name in enumerate(shards)}}
    small = {name: data for name, data in files.items() if not name.endswith(".safetensors")}
    return {**small, "model.safetensors.index.json": json.dumps(index).encode(), **shards}


class Model:
    """A model's files at one commit. Those of `lfs` are large files."""

    def __init__(self, files, lfs=(".safetensors",), commit=None):
        self.files = dict(files)
        self.lfs = {name for name in files if name.endswith(tuple(lfs))}
        self.commit = commit or hashlib.sha1(repr(sorted((n, d) for n, d in files.items())).encode()).hexdigest()
        self.sizes, self.digests, self.extra_siblings = {}, {}, []

    def etag(self, name):
        data = self.files[name]
        return self.digests.get(name) or (hashlib.sha256(data).hexdigest() if name in self.lfs else git_blob(data))

    def size(self, name):
        return self.sizes.get(name, len(self.files[name]))

    def sibling(self, name):
        entry = {"rfilename": name, "size": self.size(name), "blobId": git_blob(self.files[name])}
        if name in self.lfs:
            entry["lfs"] = {"sha256": self.etag(name), "size": self.size(name), "pointerSize": 134}
        else:
            entry["blobId"] = self.etag(name)
        return entry


class FakeHub:
    def __init__(self):
        self.models = {}  # id: {revision: Model}
        self.requests = []  # (method, path, headers as a dictionary with lower-case names)
        self.faults = []  # functions of (handler, path) that may answer a request and then return True
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                hub.answer(self)

            do_HEAD = do_GET

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):  # clients break connections on purpose
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def add(self, model_id, model, revisions=("main",)):
        for revision in (*revisions, model.commit):
            self.models.setdefault(model_id, {})[revision] = model

    def gets(self, part):
        """The GET requests whose path contains `part`."""
        return [(path, headers) for method, path, headers in list(self.requests) if method == "GET" and part in path]

    def answer(self, handler):
        path = urllib.parse.unquote(handler.path)
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.requests.append((handler.command, path, headers))
        for fault in list(self.faults):
            if fault(handler, path):
                return
        parts = urllib.parse.urlsplit(path).path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self.answer_api(handler, "/".join(parts[2:4]), parts[4:])
        elif parts[0] == "cdn":
            model = self.models["/".join(parts[1:3])][parts[3]]
            self.send_file(handler, model, "/".join(parts[4:]))
        elif len(parts) > 4 and parts[2] == "resolve":
            self.answer_file(handler, "/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self.send_error(handler, 404)

    def answer_api(self, handler, model_id, rest):
        revisions = self.models.get(model_id)
        if revisions is None:
            return self.send_error(handler, 401, "RepoNotFound")
        revision = "/".join(rest[1:]) if rest else "main"
        model = revisions.get(revision)
        if model is None:
            return self.send_error(handler, 404, "RevisionNotFound")
        if rest[:1] == ["tree"]:
            body = [
                {"type": "file", "path": n, "size": model.size(n), "oid": git_blob(model.files[n])}
                | ({"lfs": {"oid": model.etag(n), "size": model.size(n), "pointerSize": 134}} if n in model.lfs else {})
                for n in model.files
            ]
        else:
            siblings = [model.sibling(name) for name in model.files] + model.extra_siblings
            body = {"id": model_id, "modelId": model_id, "sha": model.commit, "siblings": siblings}
        self.send(handler, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def answer_file(self, handler, model_id, revision, name):
        model = self.models.get(model_id, {}).get(revision)
        if model is None or name not in model.files:
            return self.send_error(handler, 404, "EntryNotFound")
        headers = {"X-Repo-Commit": model.commit, "ETag": f'"{model.etag(name)}"'}
        if name in model.lfs:
            headers |= {"X-Linked-Etag": f'"{model.etag(name)}"', "X-Linked-Size": str(model.size(name))}
            headers["Location"] = f"http://localhost:{self.port}/cdn/{model_id}/{model.commit}/{name}"
            return self.send(handler, 302, b"", headers)
        self.send_file(handler, model, name, headers)

    def send_file(self, handler, model, name, headers=None):
        data = model.files[name]
        headers = {"ETag": f'"{model.etag(name)}"', "Accept-Ranges": "bytes", **(headers or {})}
        status, first = 200, 0
        asked = handler.headers.get("Range")
        if asked:
            first = int(asked.removeprefix("bytes=").split("-")[0])
            if first >= len(data):
                return self.send(handler, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
            status = 206
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.send(handler, status, data[first:], headers)

    def send_error(self, handler, status, code=None, **more):
        headers = {"X-Error-Code": code} if code else {}
        self.send(handler, status, b'{"error": "no"}', headers | {k.replace("_", "-"): v for k, v in more.items()})

    @staticmethod
    def send(handler, status, body, headers):
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def status_fault(hub, part, status, times=10**9, code=None, **headers):
    """The next `times` requests whose path contains `part` get this status."""
    left = [times]

    def fault(handler, path):
        if part not in path or left[0] <= 0:
            return False
        left[0] -= 1
        hub.send_error(handler, status, code, **headers)
        return True

    return fault


def cut_fault(hub, part, after, times=10**9, wait=0):
    """The next `times` downloads of a file whose path contains `part` end, or hang for `wait` seconds, after `after` bytes."""
    left = [times]

    def fault(handler, path):
        if not path.startswith("/cdn/") or part not in path or left[0] <= 0:
            return False
        left[0] -= 1
        _, _, org, name, commit, *rest = path.split("/")
        data = hub.models[f"{org}/{name}"][commit].files["/".join(rest)]
        first = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        handler.send_response(206 if first else 200)
        handler.send_header("Content-Length", str(len(data) - first))
        if first:
            handler.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        handler.end_headers()
        handler.wfile.write(data[first : first + after])
        handler.wfile.flush()
        time.sleep(wait)
        handler.close_connection = True
        return True

    return fault
