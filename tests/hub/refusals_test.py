#!/usr/bin/env python3
"""What `nanovllm pull` says of a hub that refuses, breaks or lies, and what such a hub cannot do.
refusals_test.py NANOVLLM MODEL"""
import contextlib
import json
import subprocess

from fake_hub import Model, sharded_files, status_fault
from hub_test_case import ID, NANOVLLM, HubTest, run_tests, tales_files


class Failures(HubTest):
    def test_gated_models(self):
        self.hub.faults.append(status_fault(self.hub, "resolve", 401, code="GatedRepo"))
        page = f"{self.hub.endpoint}/{ID}"
        self.refused("gated model: accept its licence at " + page, "set HF_TOKEN to a token from", status=2)
        self.hub.faults[:] = [status_fault(self.hub, "resolve", 403, code="GatedRepo")]
        self.refused("account of your HF_TOKEN has no access.*" + page, status=2, HF_TOKEN="hf_x")

    def test_wrong_ids(self):
        self.pull()
        self.refused(
            f"{self.hub.endpoint} has no model of this name", "HF_TOKEN", f"did you mean '{ID}'", status=2, command=("pull", "org/tinny")
        )
        self.refused("no such folder, and .* has no model", status=2, command=("info", "models/typo"))
        self.refused("neither a folder nor in the cache", "--local-files-only forbids", f"did you mean '{ID}'", status=2,
                     command=("generate", "org/tinny", "--prompt", "x", "--local-files-only"))  # fmt: skip
        self.refused("HF_HUB_OFFLINE forbids", status=2, command=("info", "org/tinny"), HF_HUB_OFFLINE="1")
        self.refused("HF_HUB_OFFLINE forbids", status=2, HF_HUB_OFFLINE="1")
        for name in ("tiny", "a/b/c", "/org/tiny", "../tiny", "org/..", "org/a--b", "org/tiny@", "org/tiny@../x", "org/a b", ""):
            self.run_command("pull", name, status=2)

    def test_refused_files(self):
        for status in (401, 403, 404):
            self.hub.faults[:] = [status_fault(self.hub, "/config.json", status)]
            self.refused(rf"{ID}: config.json: {self.hub.endpoint} answers with the status {status}$", status=2)

    def test_no_network(self):
        self.pull()  # what is in the cache is not suggested to itself
        next(self.folder().glob("snapshots/*/config.json")).unlink()
        error = self.refused("nor complete in the cache", "cannot be reached", status=2, HF_ENDPOINT="http://127.0.0.1:9")
        self.assertNotIn("did you mean", error)
        self.refused("cannot be reached", "check the name, the network and https_proxy", status=2, HF_ENDPOINT="http://127.0.0.1:9")
        self.refused("HF_ENDPOINT is 'ftp://x'", status=2, HF_ENDPOINT="ftp://x")

    def test_servers_with_problems(self):
        self.hub.faults.append(status_fault(self.hub, "/api/", 503, times=2))
        self.hub.faults.append(status_fault(self.hub, "/cdn/", 500, times=2))
        self.pull()
        self.run_command("remove", ID)
        self.hub.faults[:] = [status_fault(self.hub, "/cdn/", 502)]
        self.refused("status 502", "gave up after 5 tries; try again later: what was downloaded is kept")

    def test_too_many_requests(self):
        self.hub.faults.append(status_fault(self.hub, "/cdn/", 429, times=1, Retry_After="1"))
        self.assertIn("asks for fewer requests (status 429)", self.pull().stderr)
        self.run_command("remove", ID)
        self.hub.faults[:] = [status_fault(self.hub, "/api/", 429, Retry_After="3600")]
        self.refused("status 429", "try again after 3600 seconds")

    def test_wrong_contents(self):
        self.model.digests["model.safetensors"] = "0" * 64
        self.refused("model.safetensors has a wrong checksum, so it was deleted")
        self.assertEqual(self.incomplete_sizes(), [])
        self.assertEqual(list(self.folder().glob("snapshots/*")), [])
        self.model.digests = {"config.json": "0" * 40}
        self.refused("config.json has a wrong checksum")

    def test_wrong_sizes(self):
        size = len(self.model.files["model.safetensors"])
        self.model.sizes["model.safetensors"] = size - 1
        self.refused(f"the server sends more than the {size - 1} bytes")
        self.model.sizes["model.safetensors"] = size + 1
        self.refused(f"the server ends it after {size} of {size + 1} bytes; gave up after 5 tries")

    def test_a_full_disk(self):
        self.model.sizes["model.safetensors"] = 1 << 41
        self.refused(r"org/tiny needs 2\.20 TB more, but .* has only [\d.]+ [MGT]B free", "nanovllm remove", "HF_HOME")
        self.model.sizes["model.safetensors"] = 1 << 60
        self.refused("model.safetensors has 1152921504606846976 bytes; at most", status=2)
        limited = ["sh", "-c", 'ulimit -f 64; exec "$0" pull "$1"', NANOVLLM, ID]
        self.model.sizes.clear()
        result = subprocess.run(limited, env=self.environment(), capture_output=True, text=True)
        self.assertEqual(result.returncode, 1)
        self.assertIn("File too large", result.stderr)

    def test_models_without_safetensors(self):
        files = {name: data for name, data in tales_files().items() if not name.endswith(".safetensors")}
        self.hub.add("org/pickle", Model({**files, "pytorch_model.bin": b"x"}))
        self.refused("another format .pytorch_model.bin.; safetensors", status=2, command=("pull", "org/pickle"))
        self.hub.add("org/none", Model({"README.md": b"x"}))
        self.refused("has no config.json", status=2, command=("pull", "org/none"))
        self.assertEqual(self.hub.gets("/resolve/"), [])


class Security(HubTest):
    def test_names_never_leave_the_snapshot(self):
        for name in ("../../../evil.safetensors", "/tmp/evil.safetensors", "sub/evil.safetensors", "..", ".safetensors", "evil.bin"):
            files = sharded_files(tales_files())
            files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
            model = Model(files)
            model.extra_siblings = [{"rfilename": name, "size": 1, "blobId": "0" * 40}]
            self.hub.add("org/evil", model)
            self.refused("is not the name of a safetensors file", status=2, command=("pull", "org/evil"))
        self.assertEqual([path for path in self.home.rglob("*evil*") if path.name != "models--org--evil"], [])

    def test_checksums_that_are_paths(self):
        for name in ("config.json", "model.safetensors"):
            self.model.digests = {name: "../../../../evil"}
            self.refused(f"no valid checksum for {name}", status=2)
        self.model.digests = {}
        self.model.commit = "../../evil"
        self.refused("no valid commit")

    def test_answers_that_are_not_a_list(self):
        for body in (b"", b"[]", b"<html>", b'{"sha": 1}', b'{"siblings": {}}', b"[" * 100_000):
            def answer(handler, path, body=body):
                self.hub.send(handler, 200, body, {})
                return True

            self.hub.faults[:] = [answer]
            self.refused("does not answer as the Hugging Face hub does")

    def test_an_endless_list(self):
        def answer(handler, path):
            handler.send_response(200)
            handler.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    handler.wfile.write(b" " * (1 << 20))
            handler.close_connection = True
            return True

        self.hub.faults.append(answer)
        self.refused("the list of files is too long")

    def test_the_token_goes_to_the_endpoint_only(self):
        self.pull(HF_TOKEN=" hf_secret\n")
        for path, headers in self.hub.gets(""):
            wanted = None if path.startswith("/cdn/") else "Bearer hf_secret"
            self.assertEqual(headers.get("authorization"), wanted, path)
        self.assertNotEqual(self.hub.gets("/cdn/"), [])

    def test_the_token_of_the_login(self):
        (self.home / "token").write_text("hf_file\n")
        self.pull()
        self.assertEqual({h.get("authorization") for _, h in self.hub.gets("/api/")}, {"Bearer hf_file"})
        self.refused("HF_TOKEN: a token has only letters", status=2, HF_TOKEN="a\nHost: b")

    def test_redirects_to_other_protocols(self):
        for address in ("file:///etc/passwd", "ftp://127.0.0.1/x"):
            def redirect(handler, path, address=address):
                self.hub.send(handler, 302, b"", {"Location": address})
                return True

            self.hub.faults[:] = [redirect]
            error = self.refused("redirects to another protocol than http and https")
            self.assertNotIn("gave up", error)

    def test_the_password_of_the_endpoint_is_not_printed(self):
        endpoint = self.hub.endpoint.replace("://", "://user:secret@")
        self.assertNotIn("secret", self.pull(HF_ENDPOINT=endpoint).stderr)
        for status in (401, 404, 429, 500):
            self.hub.faults[:] = [status_fault(self.hub, "/api/", status, Retry_After="3600")]
            self.assertNotIn("secret", self.refused("127.0.0.1", status=2 if status < 429 else 1, HF_ENDPOINT=endpoint))

    def test_a_redirect_loop(self):
        def loop(handler, path):
            if "/resolve/" not in path:
                return False
            self.hub.send(handler, 302, b"", {"Location": handler.path})
            return True

        self.hub.faults.append(loop)
        self.refused("redirects")


if __name__ == "__main__":
    run_tests()
