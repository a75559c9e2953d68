#!/usr/bin/env python3
"""Downloads models from a small hub of the test's own with `nanovllm pull` and the other commands.
download_test.py NANOVLLM MODEL
FAULT_SHIM in the environment is the library of tests/faults/shim."""
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import unittest

from fake_hub import Model, cut_fault, sharded_files, status_fault
from hub_test_case import FAULT_SHIM, ID, NANOVLLM, TALES, HubTest, run_tests, tales_files


class Layout(HubTest):
    def test_a_download_has_the_layout_of_huggingface_hub(self):
        result = self.pull()
        snapshot = self.folder() / "snapshots" / self.model.commit
        self.assertEqual(result.stdout, f"{snapshot}\n")
        self.assertEqual((self.folder() / "refs/main").read_text(), self.model.commit)
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            link = snapshot / name
            self.assertEqual(os.readlink(link), f"../../blobs/{self.model.etag(name)}")
            self.assertEqual(link.read_bytes(), self.model.files[name])
            self.assertTrue((self.cache / ".locks" / self.folder().name / f"{self.model.etag(name)}.lock").exists())
        self.assertEqual(self.incomplete_sizes(), [])
        lines = result.stderr.splitlines()
        self.assertRegex(lines[0], rf"^Downloading \d+ files of {ID} \([\d.]+ [kM]?B\) from {self.hub.endpoint} to ")
        self.assertRegex(lines[1], rf"^Downloading 1 file of {ID} ")
        self.assertEqual(len(lines), 2)

    def test_only_the_needed_files_are_downloaded(self):
        files = tales_files() | {"README.md": b"x", "pytorch_model.bin": b"pickle", "onnx/model.onnx": b"x", "a.py": b"x"}
        files |= {"original.safetensors": b"x"}
        quantization = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}
        files |= dict.fromkeys(quantization, b"{}")
        self.hub.add("org/more", Model(files))
        self.pull("org/more")
        names = {path.name for path in self.folder("org/more").glob("snapshots/*/*")}
        self.assertLessEqual({"config.json", "tokenizer.json", "model.safetensors"} | quantization, names)
        self.assertFalse(names & {"README.md", "pytorch_model.bin", "onnx", "a.py", "original.safetensors"})

    def test_commands_take_an_id_and_then_need_no_hub(self):
        command = ["generate", ID, "--prompt", "Once upon a time", "--max-tokens", "4", "--temperature", "0"]
        first = self.run_command(*command)
        self.assertIn("Downloading", first.stderr)
        num_requests = len(self.hub.requests)
        second = self.run_command(*command)
        self.assertEqual(second.stdout, first.stdout)
        self.assertNotIn("Downloading", second.stderr)
        self.assertEqual(len(self.hub.requests), num_requests)
        self.run_command(*command, "--local-files-only")
        self.run_command(*command, HF_HUB_OFFLINE="1")
        by_folder = subprocess.run([NANOVLLM, *command[:1], TALES, *command[2:]], capture_output=True, text=True)
        self.assertEqual(by_folder.stdout, first.stdout)

    def test_tokenize_downloads_no_weights(self):
        subprocess.run([NANOVLLM, "tokenize", ID], env=self.environment(), input=b"Once", check=True, capture_output=True)
        self.assertEqual(self.hub.gets("model.safetensors"), [])
        self.run_command("info", ID, "--load-format", "dummy")
        self.assertEqual(self.hub.gets("model.safetensors"), [])
        self.run_command("info", ID)
        self.assertNotEqual(self.hub.gets("model.safetensors"), [])

    def test_a_revision(self):
        other = Model({**tales_files(), "config.json": tales_files()["config.json"] + b"\n"})
        self.hub.add(ID, other, revisions=("v1.0", "refs/pr/1"))
        self.pull(f"{ID}@v1.0")
        self.assertEqual((self.folder() / "refs/v1.0").read_text(), other.commit)
        self.assertFalse((self.folder() / "refs/main").exists())
        self.pull(f"{ID}@refs/pr/1")
        self.assertEqual((self.folder() / "refs/refs/pr/1").read_text(), other.commit)
        weights = self.hub.gets("/cdn/")
        self.assertEqual(len(weights), 1)  # the revisions share their blobs
        self.run_command("info", f"{ID}@{other.commit}", "--local-files-only")
        self.run_command("info", ID, "--revision", "v1.0", "--local-files-only")
        self.run_command("info", f"{ID}@v1.0", "--revision=v1.0", "--local-files-only")
        self.refused("--revision is 'v2', but the id has another one", command=("info", f"{ID}@v1.0", "--revision", "v2"), status=2)
        self.refused("--revision is '..'; it must be a branch", command=("info", ID, "--revision", ".."), status=2)
        self.refused("has no revision 'v2'", command=("info", ID, "--revision", "v2", "--local-files-only"), status=2)
        self.refused("has no revision 'v2'", status=2, command=("pull", f"{ID}@v2"))
        self.refused("has no revision 'main' of it, and --local-files-only", command=("info", ID, "--local-files-only"), status=2)

    def test_another_folder_for_downloads(self):
        cache = self.home / "models"
        self.run_command("info", ID, "--download-dir", str(cache))
        self.assertFalse(self.folder().exists())
        self.assertEqual([path.name for path in cache.glob("models--*")], [self.folder().name])
        self.run_command("info", ID, "--download_dir", str(cache), "--local-files-only")

    def test_pull_gets_a_newer_commit_and_the_others_keep_what_is_there(self):
        self.pull()
        newer = Model({**tales_files(), "config.json": tales_files()["config.json"] + b"\n"})
        self.hub.add(ID, newer)
        self.run_command("info", ID)
        self.assertEqual((self.folder() / "refs/main").read_text(), self.model.commit)
        self.assertIn("Downloading 1 of ", self.pull().stderr)
        self.assertEqual((self.folder() / "refs/main").read_text(), newer.commit)

    def test_pull_repairs_a_blob_of_a_wrong_size(self):
        self.pull()
        for name, left in (("model.safetensors", 1000), ("config.json", 0)):
            blob = self.folder() / "blobs" / self.model.etag(name)
            os.truncate(blob, left)
            self.pull()
            self.assertEqual(blob.read_bytes(), self.model.files[name])

    def test_pull_of_a_complete_model_writes_nothing(self):
        self.pull()
        (self.folder() / "blobs" / (self.model.etag("config.json") + ".1f.incomplete")).write_bytes(b"x")
        self.pull()
        self.assertEqual(self.incomplete_sizes(), [])
        folders = [self.home, *(path for path in self.home.rglob("*") if path.is_dir() and not path.is_symlink())]
        times = [folder.stat().st_mtime_ns for folder in folders]
        self.pull()
        self.assertEqual([folder.stat().st_mtime_ns for folder in folders], times)

    def test_equal_files_are_downloaded_once(self):
        files = tales_files() | {"added_tokens.json": b"{}", "vocab.json": b"{}"}
        self.hub.add("org/twice", Model(files))
        self.assertNotIn("another process", self.pull("org/twice").stderr)
        self.assertEqual(len(self.hub.gets("added_tokens.json") + self.hub.gets("vocab.json")), 1)

    def test_a_copy_without_the_chat_template(self):
        files = tales_files()
        config = json.loads(files["tokenizer_config.json"])
        del config["chat_template"]
        self.hub.add(ID, Model({**files, "tokenizer_config.json": json.dumps(config).encode()}))
        chat = ("generate", ID, "--chat", "--prompt", "Hi")
        self.pull()
        hint = f"; `nanovllm pull {ID}` downloads files that the copy may lack"
        result = subprocess.run([NANOVLLM, *chat], env=self.environment(), capture_output=True, text=True, timeout=120)
        self.assertIn(f"the model has no chat template{hint}", result.stdout + result.stderr)
        self.assertIn(hint, subprocess.run([NANOVLLM, "render", ID], env=self.environment(), capture_output=True, text=True).stderr)

    def test_shards_come_over_several_connections(self):
        model = Model(sharded_files(tales_files(), parts=4))
        self.hub.add("org/big", model)
        meeting = threading.Barrier(4, timeout=30)  # breaks unless four requests run at the same time

        def meet(handler, path):
            if path.startswith("/cdn/"):
                meeting.wait()
            return False

        self.hub.faults.append(meet)
        self.pull("org/big")
        for name in model.files:
            if name.endswith(".safetensors"):
                link = self.folder("org/big") / "snapshots" / model.commit / name
                self.assertEqual(link.read_bytes(), model.files[name])

    @unittest.skipUnless(FAULT_SHIM, "FAULT_SHIM is not set; the sanitizers do not work with it")
    def test_fewer_threads_also_do(self):
        # The first thread asks the hub, the others download. Of those the second one does not start.
        self.pull(LD_PRELOAD=FAULT_SHIM, FAULT_KIND="thread", FAULT_AT="3")
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            link = self.folder() / "snapshots" / self.model.commit / name
            self.assertEqual(link.read_bytes(), self.model.files[name])

    def test_list_and_remove(self):
        self.pull()
        self.hub.add("org/part", Model(sharded_files(tales_files())))
        self.hub.faults.append(status_fault(self.hub, "model-00002", 404, code="EntryNotFound"))
        self.run_command("pull", "org/part", status=2)
        head, *lines = self.run_command("list").stdout.splitlines()
        self.assertRegex(head, r"^ID +SIZE +LAST USE$")
        self.assertRegex(lines[0], r"^org/part +[\d.]+ [kM]B +\S+ \S+  incomplete$")
        self.assertRegex(lines[1], rf"^{ID} +[\d.]+ MB +20\d\d-\d\d-\d\d \d\d:\d\d$")
        completions = subprocess.run(
            [NANOVLLM, "complete", "chat", "org/t"], env=self.environment(), capture_output=True, text=True
        )
        self.assertIn(ID, completions.stdout)
        self.assertEqual(self.run_command("remove", ID).stdout, f"removed {ID}\n")
        self.assertFalse(self.folder().exists())
        self.assertFalse((self.cache / ".locks" / self.folder().name).exists())
        self.refused("org/parts is not in the cache .* did you mean 'org/part'", command=("remove", "org/parts"), status=2)
        self.refused("not in the cache", command=("remove", "../.."), status=2)

    def test_remove_refuses_what_is_being_downloaded(self):
        self.hub.faults.append(cut_fault(self.hub, "model", 1000, wait=60))
        process = self.start("pull", ID)
        # The small files, whose locks are released when they are complete, may come first.
        self.wait_for(lambda: 1000 in self.incomplete_sizes())
        self.refused("is being downloaded by another process", command=("remove", ID), status=2)
        process.kill()
        process.communicate()
        self.run_command("remove", ID)


class Resume(HubTest):
    """The hub sees in the Range header that only the rest is asked for."""

    def ranges(self):
        return [headers.get("range") for _, headers in self.hub.gets("/cdn/")]

    def test_broken_connections(self):
        self.hub.faults.append(cut_fault(self.hub, "model.safetensors", 50_000, times=3))
        result = self.pull()
        self.assertEqual(self.ranges(), [None, "bytes=50000-", "bytes=100000-", "bytes=150000-"])
        self.assertIn("trying again in", result.stderr)

    def test_a_server_that_stops_sending(self):
        self.hub.faults.append(cut_fault(self.hub, "model.safetensors", 70_000, times=1, wait=20))
        self.pull(HF_HUB_DOWNLOAD_TIMEOUT="1")
        self.assertEqual(self.ranges(), [None, "bytes=70000-"])

    def test_a_killed_download(self):
        for number, status in ((signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)):
            with self.subTest(number):
                self.hub.requests.clear()
                self.hub.faults.append(cut_fault(self.hub, "model.safetensors", 200_000, times=1, wait=60))
                process = self.start("generate", ID, "--prompt", "a")
                self.wait_for(lambda: 200_000 in self.incomplete_sizes())
                process.send_signal(number)
                self.assertEqual(process.wait(30), status)
                process.communicate()
                self.hub.faults.clear()
                self.refused("does not have it completely, and --local-files-only", command=("info", ID, "--local-files-only"), status=2)
                self.assertIn("Downloading 1 file", self.pull().stderr)
                self.assertEqual(self.ranges(), [None, "bytes=200000-"])
                self.run_command("remove", ID)

    def test_a_wrong_beginning_is_downloaded_again(self):
        blobs = self.folder() / "blobs"
        blobs.mkdir(parents=True)
        (blobs / (self.model.etag("model.safetensors") + ".incomplete")).write_bytes(b"x" * 1000)
        self.assertIn("wrong checksum; downloading it again", self.pull().stderr)
        self.assertEqual(self.ranges(), ["bytes=1000-", None])

    def test_what_is_left_may_be_complete_or_too_long(self):
        data = self.model.files["model.safetensors"]
        blobs = self.folder() / "blobs"
        blobs.mkdir(parents=True)
        left = blobs / (self.model.etag("model.safetensors") + ".incomplete")
        left.write_bytes(data)
        self.pull()
        self.assertEqual(self.ranges(), [])
        self.run_command("remove", ID)
        blobs.mkdir(parents=True)
        left.write_bytes(data + b"x")
        self.pull()
        self.assertEqual(self.ranges(), [None])

    def test_a_server_without_ranges(self):
        self.hub.faults.append(cut_fault(self.hub, "model.safetensors", 50_000, times=1))

        def whole(handler, path):
            if not path.startswith("/cdn/") or not handler.headers.get("Range"):
                return False
            self.hub.send(handler, 200, self.model.files["model.safetensors"], {})
            return True

        self.hub.faults.append(whole)
        self.assertIn("cannot send only the rest", self.pull().stderr)
        self.assertEqual(self.ranges(), [None, "bytes=50000-", None])

    def test_two_processes_download_the_same_once(self):
        self.hub.faults.append(cut_fault(self.hub, "model.safetensors", 200_000, times=1, wait=2))
        processes = [self.start("pull", ID) for _ in range(2)]
        errors = [process.communicate(timeout=60)[1] for process in processes]
        self.assertEqual([process.returncode for process in processes], [0, 0], errors)
        self.assertEqual(self.ranges(), [None, "bytes=200000-"])
        self.assertIn("another process is downloading", "".join(errors))


class Terminal(HubTest):
    def test_bars_fit_80_columns(self):
        self.hub.add("org/big", Model(sharded_files(tales_files(), parts=3, size=3_000_000)))
        self.hub.faults.append(cut_fault(self.hub, "model-00002", 1_000_000, times=1))
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(NANOVLLM, [NANOVLLM, "pull", "org/big"], {**self.environment(), "TERM": "xterm"})
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        shown = b""
        with contextlib.suppress(OSError):  # at the end of the process
            while piece := os.read(terminal, 65536):
                shown += piece
        self.assertEqual(os.waitpid(pid, 0)[1], 0, shown)
        os.close(terminal)
        lines = [re.sub(r"\x1b\[\d*[A-Z]", "", line) for line in shown.decode().replace("\r", "").split("\n")]
        bars = [line for line in lines if "|" in line]
        for bar in bars:
            self.assertLessEqual(len(bar), 79, bar)
        for name in ("config.json", "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"):
            done = [bar for bar in bars if name[-16:] in bar and "100%|██████████|" in bar]
            self.assertTrue(done, (name, bars))


if __name__ == "__main__":
    run_tests()
