#!/usr/bin/env python3
"""The package huggingface_hub and nanovllm share one cache: each finds what the other has downloaded.
huggingface_hub_test.py NANOVLLM MODEL VENV"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from fake_hub import FakeHub, Model

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "serving"))
import python_packages

python_packages.require(sys.argv[3], {"huggingface_hub": "huggingface_hub"})
NANOVLLM, TALES = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
ID = "org/tiny"

hub = FakeHub()
folder = tempfile.TemporaryDirectory()
for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING", "XDG_"))]:
    del os.environ[name]
os.environ |= {"HF_HOME": folder.name, "HF_ENDPOINT": hub.endpoint, "no_proxy": "127.0.0.1,localhost"}
import huggingface_hub  # reads the environment


def nanovllm(*arguments):
    return subprocess.run([NANOVLLM, *arguments], check=True, capture_output=True, text=True)


class SharedCache(unittest.TestCase):
    def setUp(self):
        hub.models.clear()
        hub.requests.clear()
        self.model = Model({path.name: path.read_bytes() for path in TALES.iterdir() if path.is_file()})
        hub.add(ID, self.model, revisions=("main", "v1"))
        nanovllm_list = nanovllm("list").stdout
        if ID in nanovllm_list:
            nanovllm("remove", ID)

    def test_it_finds_what_we_have_downloaded(self):
        snapshot = nanovllm("pull", ID).stdout.strip()
        self.assertEqual(huggingface_hub.snapshot_download(ID, local_files_only=True), snapshot)
        path = huggingface_hub.hf_hub_download(ID, "model.safetensors", local_files_only=True)
        self.assertEqual(path, snapshot + "/model.safetensors")
        self.assertEqual(huggingface_hub.try_to_load_from_cache(ID, "config.json"), snapshot + "/config.json")
        num_weights = len(hub.gets("/cdn/"))
        self.assertEqual(huggingface_hub.snapshot_download(ID), snapshot)  # gets the other files, such as the README
        self.assertEqual(len(hub.gets("/cdn/")), num_weights)

    def test_its_scan_finds_our_files_without_warnings(self):
        nanovllm("pull", ID)
        nanovllm("pull", ID + "@v1")
        scan = huggingface_hub.scan_cache_dir()
        self.assertEqual(scan.warnings, [])
        (repo,) = scan.repos
        self.assertEqual(repo.repo_id, ID)
        self.assertEqual({ref for revision in repo.revisions for ref in revision.refs}, {"main", "v1"})
        self.assertIn(ID, nanovllm("list").stdout)

    def test_we_find_what_it_has_downloaded(self):
        huggingface_hub.snapshot_download(ID)
        num_requests = len(hub.requests)
        answer = nanovllm("generate", ID, "--prompt", "Once", "--max-tokens", "2", "--local-files-only")
        self.assertNotIn("Downloading", answer.stderr)
        self.assertNotIn("incomplete", nanovllm("list").stdout)
        self.assertEqual(len(hub.requests), num_requests)
        self.assertNotIn("Downloading", nanovllm("pull", ID).stderr)

    def test_we_complete_what_it_has_begun(self):
        huggingface_hub.hf_hub_download(ID, "tokenizer.json", revision="v1")
        nanovllm("info", ID + "@v1")
        self.assertEqual(len(hub.gets("tokenizer.json")), 1)
        path = huggingface_hub.hf_hub_download(ID, "model.safetensors", revision="v1", local_files_only=True)
        self.assertEqual(pathlib.Path(path).read_bytes(), self.model.files["model.safetensors"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], verbosity=2)
