"""What the tests with a small hub of their own share. Arguments of the script: NANOVLLM MODEL [TEST...]."""
import concurrent.futures
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from fake_hub import FakeHub, Model

NANOVLLM, TALES = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
FAULT_SHIM = os.environ.get("FAULT_SHIM")
ID = "org/tiny"


def tales_files():
    return {path.name: path.read_bytes() for path in TALES.iterdir() if path.is_file()}


class HubTest(unittest.TestCase):
    def setUp(self):
        self.hub = FakeHub()
        self.addCleanup(self.hub.server.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name)
        self.cache = self.home / "hub"
        self.model = Model(tales_files())
        self.hub.add(ID, self.model)

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "XDG_"))}
        no_proxy = {"no_proxy": "127.0.0.1,localhost"}
        return {**kept, **no_proxy, "HF_HOME": str(self.home), "HF_ENDPOINT": self.hub.endpoint, **more}

    def run_command(self, *arguments, status=0, **more):
        result = subprocess.run(
            [NANOVLLM, *arguments], env=self.environment(**more), capture_output=True, text=True, timeout=120, cwd=self.home
        )
        self.assertEqual(result.returncode, status, result.stderr)
        if status:
            self.assertEqual(result.stdout, "")
            self.assertRegex(result.stderr.splitlines()[-1], "^error: ")
        return result

    def pull(self, model_id=ID, **more):
        return self.run_command("pull", model_id, **more)

    def refused(self, *patterns, command=("pull", ID), status=1, **more):
        error = self.run_command(*command, status=status, **more).stderr.splitlines()[-1]
        for pattern in patterns:
            self.assertRegex(error, pattern)
        return error

    def start(self, *arguments, **more):
        return subprocess.Popen(
            [NANOVLLM, *arguments], env=self.environment(**more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def folder(self, model_id=ID):
        return self.cache / ("models--" + model_id.replace("/", "--"))

    def incomplete_sizes(self):
        sizes = []
        for path in self.folder().glob("blobs/*.incomplete"):
            with contextlib.suppress(FileNotFoundError):  # complete since it was listed
                sizes.append(path.stat().st_size)
        return sizes

    def wait_for(self, condition):
        for _ in range(3000):
            if condition():
                return
            time.sleep(0.02)
        self.fail("nothing happened for a minute")


class Runner:
    """Runs several tests at the same time, because most of their time is waiting. Each has a hub and a home of its own."""

    def run(self, suite):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            results = list(pool.map(self.run_one, self.tests_of(suite)))
        self.failures = [failure for result in results for failure in result.failures + result.errors]
        for test, traceback in self.failures:
            print(f"\nFAILED: {test}\n{traceback}", file=sys.stderr)
        print(f"{len(results)} tests, {len(self.failures)} failures", file=sys.stderr)
        return self

    def tests_of(self, suite):
        for test in suite:
            yield from self.tests_of(test) if isinstance(test, unittest.TestSuite) else [test]

    def run_one(self, test):
        result = unittest.TestResult()
        start = time.monotonic()
        test.run(result)
        outcome = f"skipped: {result.skipped[0][1]}" if result.skipped else "ok" if result.wasSuccessful() else "FAILED"
        print(f"{test.id()} {outcome} ({time.monotonic() - start:.1f} s)", file=sys.stderr)
        return result

    def wasSuccessful(self):
        return not self.failures


def run_tests():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testRunner=Runner())
