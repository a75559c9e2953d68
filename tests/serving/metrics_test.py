#!/usr/bin/env python3
"""metrics_test.py NANOVLLM MODEL VENV: reads /metrics with Prometheus' own parser, and compares the numbers with requests.

The parser is the Python package prometheus_client. If it is missing, it is installed into the virtual environment VENV.
"""
import concurrent.futures
import http.client
import json
import sys
import time

import python_packages
from serve_test import KEY, Server, equal

# name -> type; the parser takes "_total" from the names of counters
METRICS = {
    "vllm:num_requests_running": "gauge", "vllm:num_requests_waiting": "gauge", "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter", "vllm:generation_tokens": "counter", "vllm:num_preemptions": "counter",
    "nanovllm:mask_seconds": "counter", "nanovllm:compile_seconds": "counter",
    "vllm:prefix_cache_queries": "counter", "vllm:prefix_cache_hits": "counter", "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram", "vllm:inter_token_latency_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram", "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram", "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram", "vllm:request_generation_tokens": "histogram",
    "vllm:iteration_tokens_total": "histogram", "vllm:cache_config_info": "gauge",
}
REQUEST_SECONDS = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
BUCKETS = {
    **{f"vllm:{name}_seconds": REQUEST_SECONDS for name in (
        "e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time")},
    "vllm:time_to_first_token_seconds": [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40,
                                         80, 160, 640, 2560],
    "vllm:iteration_tokens_total": [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
    "vllm:request_prompt_tokens": [1, 2, 5, 10, 20, 50, 100, 200, 500],
}


class Page:
    def __init__(self, server):
        from prometheus_client.parser import text_string_to_metric_families
        status, text = server.call("GET", "/metrics")
        equal(status, 200)
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {}
        for family in self.families.values():
            for sample in family.samples:
                equal(sample.labels.pop("model_name"), "tiny")
                self.samples[sample.name, tuple(sample.labels.values())] = sample.value

    def __call__(self, name, *labels):
        return self.samples["vllm:" + name, labels]

    def buckets(self, name):
        return [(float(labels[0]), value) for (sample, labels), value in self.samples.items() if sample == name + "_bucket"]


def test_form(server):
    equal(server.call("GET", "/metrics", key=None)[0], 401)
    page = Page(server)
    equal({name: family.type for name, family in page.families.items()}, METRICS)
    for name, family in page.families.items():
        assert family.documentation, name
    for name, family in page.families.items():
        if family.type == "histogram":
            bounds, counts = zip(*page.buckets(name))
            equal(list(counts), sorted(counts))
            equal((bounds[-1], counts[-1]), (float("inf"), page.samples[name + "_count", ()]))
            equal(list(bounds[:-1]), BUCKETS.get(name, list(bounds[:-1])))
    info = page.families["vllm:cache_config_info"].samples[0]
    equal((info.value, info.labels["block_size"], info.labels["num_gpu_blocks"]), (1, "16", "600"))
    equal({sample.labels["finished_reason"] for sample in page.families["vllm:request_success"].samples},
          {"stop", "length", "abort", "error"})


def test_numbers_add_up(server):
    before = Page(server)
    usages = []

    def ask(**body):
        status, answer = server.call("POST", "/v1/completions", dict({"ignore_eos": True, "temperature": 0}, **body))
        equal(status, 200)
        usages.append(answer["usage"])

    story = "Once upon a time there was a little dog who lived in a house near the forest"
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: ask(prompt=f"{n} {story}", max_tokens=n), range(1, 9)))
    ask(prompt=story, max_tokens=20)
    ask(prompt=story, max_tokens=20)  # its prompt's first block is cached
    ask(prompt=story, max_tokens=20, n=3)
    ask(prompt=[story, "A cat"], max_tokens=4)
    ask(prompt=story, max_tokens=50, stop=["a"])
    equal(server.call("POST", "/v1/completions", {"prompt": "a", "temperature": -1})[0], 400)  # counts nowhere
    after = Page(server)

    def grown(name, *labels):
        return after(name, *labels) - before(name, *labels)

    num_prompts, num_answers = len(usages) + 1, len(usages) + 3
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    output_tokens = sum(usage["completion_tokens"] for usage in usages)
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert cached >= 16
    equal(grown("prompt_tokens_total"), prompt_tokens)
    equal(grown("request_prompt_tokens_sum"), prompt_tokens)
    equal(grown("request_prompt_tokens_count"), num_prompts)
    equal(grown("generation_tokens_total"), output_tokens)
    equal(grown("request_generation_tokens_sum"), output_tokens)
    equal(grown("request_generation_tokens_count"), num_answers)
    equal(grown("prefix_cache_queries_total"), prompt_tokens)
    equal(grown("prefix_cache_hits_total"), cached)
    equal([grown("request_success_total", reason) for reason in ("stop", "length", "abort", "error")], [1, num_answers - 1, 0, 0])
    equal(grown("time_to_first_token_seconds_count"), num_answers)
    equal(grown("inter_token_latency_seconds_count"), output_tokens - num_answers)
    equal(grown("e2e_request_latency_seconds_count"), num_prompts)
    for phase in ("queue", "prefill", "decode", "inference"):
        equal(grown(f"request_{phase}_time_seconds_count"), num_prompts)
    # Every prompt token is computed or cached, and every token of an answer but the last is computed. The last step of an answer
    # may have computed one more that was dropped.
    computed = prompt_tokens - cached + output_tokens - num_answers
    assert computed <= grown("iteration_tokens_total_sum") <= computed + num_answers, (computed, grown("iteration_tokens_total_sum"))
    for total in ("time_to_first_token_seconds_sum", "inter_token_latency_seconds_sum"):
        assert 0 < grown(total) < grown("e2e_request_latency_seconds_sum") * 3
    queue, prefill, decode, inference, whole = (grown(name + "_seconds_sum") for name in (
        "request_queue_time", "request_prefill_time", "request_decode_time", "request_inference_time", "e2e_request_latency"))
    assert 0 < prefill and 0 < decode and abs(prefill + decode - inference) < 1e-6, (prefill, decode, inference)
    assert queue + inference <= whole + 1e-6, (queue, inference, whole)
    assert 0 <= grown("request_queue_time_seconds_sum") <= grown("e2e_request_latency_seconds_sum")


def test_running_waiting_and_clients_that_vanish(server):
    """Thousand clients go at once, while they wait and while they get a stream; nothing of their requests remains."""
    body = json.dumps({"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True})
    before = Page(server)
    connections = []
    for _ in range(1000):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        connection.request("POST", "/v1/completions", body, {"Authorization": "Bearer " + KEY})
        connections.append(connection)
    while True:
        page = Page(server)
        if page("num_requests_running") == 8 and page("num_requests_waiting") > 500:
            break
    assert page("kv_cache_usage_perc") > 0
    for connection in connections:
        connection.close()
    while server.call("GET", "/load")[1]["server_load"] > 0 or Page(server)("num_requests_running") > 0:
        time.sleep(0.01)
    after = Page(server)
    equal([after(name) for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")], [0, 0, 0])
    ended = {reason: after("request_success_total", reason) - before("request_success_total", reason)
             for reason in ("stop", "length", "abort", "error")}
    equal((ended["stop"], ended["error"], ended["length"] + ended["abort"]), (0, 0, 1000))
    assert ended["abort"] > 0


def main():
    python_packages.require(sys.argv[3], {"prometheus_client": "prometheus_client"})
    server = Server("--api-key", KEY, "--served-model-name", "tiny", "--dtype", "float32", "--max-num-seqs", "8", "--block-size", "16",
                    "--num-gpu-blocks-override", "600", "--max-model-len", "512", "--disable-access-log")
    for test in (test_form, test_numbers_add_up, test_running_waiting_and_clients_that_vanish):
        test(server)
        print(test.__name__, "passed", flush=True)
    equal(server.stop(), 0)


main()
