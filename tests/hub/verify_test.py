#!/usr/bin/env python3
"""`nanovllm pull --verify`: contents that are not those of the hub are found and downloaded again; and links in a shared cache are
not followed. verify_test.py NANOVLLM MODEL"""
import os
import shutil
import subprocess

from fake_hub import Model, sharded_files, status_fault
from hub_test_case import ID, NANOVLLM, HubTest, run_tests, tales_files

WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"


class Damaged(HubTest):
    def setUp(self):
        super().setUp()
        self.pull()
        self.hub.requests.clear()
        self.snapshot = self.folder() / "snapshots" / self.model.commit

    def blob(self, name):
        return self.folder() / "blobs" / self.model.etag(name)

    def damage(self, name, offset=0, what=b"\0\0\0\0"):
        with open(self.blob(name), "r+b") as file:
            file.seek(offset)
            file.write(what)

    def verify(self, *more, **environment):
        return self.run_command("pull", ID, "--verify", *more, **environment)

    def assert_is_whole(self):
        for path in self.snapshot.iterdir():
            self.assertEqual(path.read_bytes(), self.model.files[path.name], path)

    def test_what_is_right_stays(self):
        times = [path.stat().st_mtime_ns for path in self.folder().rglob("*")]
        result = self.verify()
        self.assertEqual(result.stdout, f"{self.snapshot}\n")
        self.assertRegex(result.stderr, rf"^The checksums of \d+ files of {ID} \([\d.]+ MB\) were checked\n$")
        self.assertEqual([path.stat().st_mtime_ns for path in self.folder().rglob("*")], times)
        self.assertEqual(self.hub.gets("resolve"), [])

    def test_damaged_files_are_downloaded_again(self):
        size = len(self.model.files[WEIGHTS])
        for name, offset in ((WEIGHTS, 0), (WEIGHTS, size - 4), (TOKENIZER, 100), ("config.json", 0)):
            with self.subTest(name=name, offset=offset):
                self.damage(name, offset, b"\1\2\3\4")
                self.assertNotIn("damaged", self.pull().stderr)  # the size is right
                self.hub.requests.clear()
                result = self.verify()
                self.assertIn(f"{name} is damaged: ", result.stderr)
                self.assertEqual(len(self.hub.gets("resolve")), 1)
                self.assert_is_whole()
                self.assertNotIn("damaged", self.verify().stderr)

    def test_several_damaged_files_of_wrong_sizes_too(self):
        self.damage(WEIGHTS)
        self.damage(TOKENIZER)
        os.truncate(self.blob("config.json"), 3)
        result = self.verify()
        for name in (WEIGHTS, TOKENIZER):
            self.assertIn(f"{name} is damaged: ", result.stderr)
        self.assert_is_whole()

    def test_a_shard_and_the_index(self):
        model = Model(sharded_files(tales_files(), parts=3))
        self.hub.add("org/big", model)
        self.pull("org/big")
        index = "model.safetensors.index.json"
        for name in ("model-00002-of-00003.safetensors", index):
            blob = self.folder("org/big") / "blobs" / model.etag(name)
            os.truncate(blob, 0)
            os.truncate(blob, model.size(name))
        self.refused(f"{index}.*; `nanovllm pull org/big --verify`", command=("info", "org/big"), status=2)
        result = self.run_command("pull", "org/big", "--verify")
        for name in ("model-00002-of-00003.safetensors", index):
            self.assertIn(f"{name} is damaged: ", result.stderr)
            path = self.folder("org/big") / "snapshots" / model.commit / name
            self.assertEqual(path.read_bytes(), model.files[name])

    def test_without_a_hub(self):
        def no_network():
            return {"HF_ENDPOINT": "http://127.0.0.1:1"}

        for environment in ({"HF_HUB_OFFLINE": "1"}, no_network()):
            with self.subTest(environment):
                result = self.verify(**environment)
                self.assertEqual(result.stdout, f"{self.snapshot}\n")
                self.assertRegex(result.stderr, rf"\d+ files of {ID} have the right checksum; 0 were not checked")
                self.damage(TOKENIZER, 50, b"\1")
                self.damage(WEIGHTS)
                error = self.refused(
                    rf"{self.snapshot}/{TOKENIZER}",
                    rf"{self.snapshot}/{WEIGHTS}",
                    f"are damaged: .*`nanovllm pull {ID} --verify` downloads them again",
                    "HF_HUB_OFFLINE" if "HF_HUB_OFFLINE" in environment else "cannot be reached",
                    command=("pull", ID, "--verify"),
                    status=2,
                    **environment,
                )
                self.assertNotIn("config.json is", error)
                self.verify()
                self.assert_is_whole()

    def test_a_hub_that_answers_with_errors(self):
        self.damage(TOKENIZER, 50, b"\1")
        self.hub.faults.append(status_fault(self.hub, "/api/models/", 401, code="GatedRepo"))
        self.refused(f"{TOKENIZER} is damaged", "gated model", command=("pull", ID, "--verify"), status=2)
        self.refused("gated model", command=("pull", "org/none", "--verify"), status=2)

    def test_names_that_are_no_checksums(self):
        for name, etag in ((TOKENIZER, "d41d8cd98f00b204e9800998ecf8427e-5"), ("config.json", "x" * 40)):
            other = self.blob(name).with_name(etag)
            self.blob(name).rename(other)
            (self.snapshot / name).unlink()
            (self.snapshot / name).symlink_to(f"../../blobs/{etag}")
        result = self.verify(HF_HUB_OFFLINE="1")
        self.assertIn("2 were not checked", result.stderr)
        result = self.verify()  # the hub says what they must be, and they are downloaded
        self.assertEqual(len(self.hub.gets("resolve")), 2)
        self.assert_is_whole()

    def test_a_snapshot_of_files(self):
        """A disk without symbolic links."""
        for path in self.snapshot.iterdir():
            real = path.resolve()
            path.unlink()
            shutil.copyfile(real, path)
        shutil.rmtree(self.folder() / "blobs")
        self.hub.requests.clear()
        self.pull()
        self.verify()
        self.assertEqual(self.hub.gets("resolve"), [])
        result = self.verify(HF_HUB_OFFLINE="1")
        self.assertRegex(result.stderr, r"0 files .* have the right checksum; \d+ were not checked")
        with open(self.snapshot / TOKENIZER, "r+b") as file:
            file.write(b"\0")
        result = self.verify()
        self.assertIn(f"{TOKENIZER} is damaged: ", result.stderr)
        self.assertEqual(len(self.hub.gets("resolve")), 1)
        self.assert_is_whole()

    def test_equal_files_on_a_disk_without_links(self):
        model = Model(tales_files() | {"added_tokens.json": b"{}", "vocab.json": b"{}"})
        self.hub.add("org/twice", model)
        snapshot = self.folder("org/twice") / "snapshots" / model.commit
        snapshot.mkdir(parents=True)
        for name, data in model.files.items():
            (snapshot / name).write_bytes(data)
        (snapshot / "vocab.json").write_bytes(b"[]")
        self.assertIn("vocab.json is damaged", self.run_command("pull", "org/twice", "--verify").stderr)
        for name, data in model.files.items():
            self.assertEqual((snapshot / name).read_bytes(), data)

    def test_an_offline_copy_that_is_not_complete(self):
        (self.snapshot / WEIGHTS).unlink()
        self.refused(f"lacks {WEIGHTS}", command=("pull", ID, "--verify"), status=2, HF_HUB_OFFLINE="1")
        self.refused("HF_HUB_OFFLINE forbids", command=("pull", "org/none", "--verify"), status=2, HF_HUB_OFFLINE="1")

    def test_errors_of_a_damaged_model_name_the_command(self):
        hint = f"; `nanovllm pull {ID} --verify` finds damaged files"
        generate = ("generate", ID, "--prompt", "a", "--max-tokens", "1")
        for name, offset, what in (
            (WEIGHTS, 0, b"\xff" * 8),  # a header that is too long
            (WEIGHTS, 8, b"x"),  # one that is not JSON
            (TOKENIZER, 0, b"\0"),
            ("config.json", 0, b"x"),
        ):
            self.damage(name, offset, what)
            for command in (generate, ("info", ID)):
                with self.subTest(name=name, command=command[0]):
                    result = subprocess.run([NANOVLLM, *command], env=self.environment(), capture_output=True, text=True, timeout=120)
                    self.assertEqual(result.returncode, 2, result.stderr)
                    self.assertIn(hint, result.stderr)
                    self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.verify()
        self.run_command(*generate)

    def test_errors_of_other_kinds_do_not(self):
        for command in (
            ("generate", ID, "--prompt", "a", "--max-model-len", "1000000"),
            ("generate", ID, "--prompt", "a", "--temperature", "-1"),
        ):
            self.assertNotIn("--verify", self.refused("error", command=command, status=2))
        # The hub has the file like this, so a download changes nothing.
        files = {**tales_files(), "config.json": tales_files()["config.json"].replace(b"Qwen3ForCausalLM", b"Qwen9ForCausalLM")}
        self.hub.add("org/new", Model(files))
        self.pull("org/new")
        result = subprocess.run([NANOVLLM, "info", "org/new"], env=self.environment(), capture_output=True, text=True, timeout=120)
        self.assertEqual(result.returncode, 2)
        self.assertIn("config.json", result.stderr)
        self.assertNotIn("--verify", result.stderr)

    def test_another_revision_is_named(self):
        other = Model({**tales_files(), "config.json": tales_files()["config.json"] + b"\n"})
        self.hub.add(ID, other, revisions=("v1",))
        self.pull(f"{ID}@v1")
        with open(self.folder() / "blobs" / other.etag("config.json"), "r+b") as file:
            file.write(b"x")
        error = self.refused("config.json", command=("generate", f"{ID}@v1", "--prompt", "a"), status=2)
        self.assertIn(f"`nanovllm pull {ID}@{other.commit} --verify`", error)
        self.run_command("pull", f"{ID}@{other.commit}", "--verify")
        self.run_command("generate", f"{ID}@v1", "--prompt", "a", "--max-tokens", "1")


class Links(HubTest):
    """In a cache that several users share, any of them could put a link where another one writes."""

    def plant(self, path, victim):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(victim)

    def test_a_lock(self):
        victim = self.home / "victim"
        lock = self.cache / ".locks" / self.folder().name / f"{self.model.etag('config.json')}.lock"
        self.plant(lock, victim)
        self.refused(f"{lock}: it is a symbolic link, which is not followed; remove it")
        self.assertFalse(victim.exists())

    def test_an_incomplete_file(self):
        victim = self.home / "victim"
        victim.write_bytes(b"precious")
        self.plant(self.folder() / "blobs" / f"{self.model.etag('config.json')}.incomplete", victim)
        self.refused("incomplete: it is a symbolic link, which is not followed; remove it")
        self.assertEqual(victim.read_bytes(), b"precious")

    def test_what_a_download_left(self):
        self.pull()
        victim = self.home / "victim"
        etag = self.model.etag("config.json")
        (self.folder() / "blobs" / f"{etag}.1f.incomplete").write_bytes(b"x")
        lock = self.cache / ".locks" / self.folder().name / f"{etag}.lock"
        lock.unlink()
        self.plant(lock, victim)
        self.pull()
        self.assertFalse(victim.exists())
        self.run_command("remove", ID)
        self.assertFalse(victim.exists())

    def test_folders_of_a_snapshot_and_of_refs(self):
        for name in ("snapshots", f"snapshots/{self.model.commit}", "refs"):
            with self.subTest(name):
                victim = self.home / "folder"
                victim.mkdir()
                for file in ("config.json", "main"):
                    (victim / file).write_text("precious")
                self.plant(self.folder() / name, victim)
                self.refused("it is a symbolic link, and a folder is needed here; remove it")
                self.assertEqual(sorted(path.name for path in victim.iterdir()), ["config.json", "main"])
                for file in ("config.json", "main"):
                    self.assertEqual((victim / file).read_text(), "precious")
                shutil.rmtree(victim)
                shutil.rmtree(self.folder())

    def test_the_folder_of_a_model_may_be_a_link(self):
        """A user may have moved it to another disk."""
        elsewhere = self.home / "elsewhere"
        elsewhere.mkdir()
        self.plant(self.folder(), elsewhere)
        self.pull()
        self.assertTrue((elsewhere / "snapshots" / self.model.commit / "config.json").exists())


if __name__ == "__main__":
    run_tests()
