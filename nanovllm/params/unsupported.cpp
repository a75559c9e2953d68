#include "nanovllm/params/unsupported.h"

#include <algorithm>
#include <array>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

using Place = UnsupportedName::Place;
using Takes = UnsupportedName::Takes;
constexpr uint32_t kEngine = Place::kEngineOption, kServer = Place::kServeOption,
                   kBench = Place::kBenchOption, kBenchServe = Place::kBenchServeOption,
                   kLine = Place::kLine, kBody = Place::kBody, kSampling = Place::kSamplingParams,
                   kCall = Place::kGenerate | Place::kChat;
constexpr Takes kFlag = Takes::kNothing, kValue = Takes::kValue, kValues = Takes::kValues;

/// Several names with the same rule, separated by spaces.
struct Row {
  uint32_t places;
  Takes takes;
  std::string_view names;
  std::string_view harmless = "*";
  std::string_view reason = {};
};

constexpr auto kRows = std::to_array<Row>({
    // -- How a model is computed, not what: speed, memory and kernels.
    {kEngine, kFlag, "enable-chunked-prefill use-v2-block-manager multi-step-stream-outputs"},
    {kEngine, kFlag, "disable-async-output-proc disable-cascade-attn disable-sliding-window"},
    {kEngine, kFlag, "disable-hybrid-kv-cache-manager disable-chunked-mm-input"},
    {kEngine, kFlag, "kv-sharing-fast-prefill calculate-kv-scales swa-bounded-replay"},
    {kEngine, kFlag, "scheduler-reserve-full-isl long-prefill-token-threshold-adaptive"},
    {kEngine, kFlag, "use-fp64-gumbel enable-flashinfer-autotune monokernel enable-hc-sp"},
    {kEngine, kFlag, "enable-cumem-allocator enable-nccl-comm-suspend use-tqdm-on-load"},
    {kEngine, kValue, "compilation-config optimization-level performance-mode attention-config"},
    {kEngine, kValue, "kernel-config additional-config engram-config override-neuron-config"},
    {kEngine, kValue, "attention-backend moe-backend linear-backend ir-op-priority"},
    {kEngine, kValue, "sparse-indexer-topk-backend gdn-prefill-backend kda-prefill-backend"},
    {kEngine, kValue, "kda-decode-backend mamba-backend mamba-ssu-algorithm mamba-cache-dtype"},
    {kEngine, kValue, "mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode"},
    {kEngine, kValue, "mamba-cache-philox-rounds replayssm-buffer-len prefix-match-unit"},
    {kEngine, kFlag, "enable-mamba-cache-stochastic-rounding use-replayssm"},
    {kEngine, kFlag, "enable-mamba-shared-prefix-checkpoint"},
    {kEngine, kValue, "max-cudagraph-capture-size max-seq-len-to-capture"},
    {kEngine, kValue, "max-context-len-to-capture num-scheduler-steps num-lookahead-slots"},
    {kEngine, kValues, "cudagraph-capture-sizes cuda-graph-sizes"},
    {kEngine, kValue, "scheduler-delay-factor preemption-mode max-num-scheduled-tokens"},
    {kEngine, kValue, "max-num-active-seqs max-num-queued-tokens long-prefill-token-threshold"},
    {kEngine, kValue, "max-num-partial-prefills max-long-partial-prefills watermark"},
    {kEngine, kValue, "prefill-schedule-interval stream-interval"},
    {kEngine, kValue, "swap-space kv-offloading-size kv-offloading-backend offload-backend"},
    {kEngine, kValues, "cpu-offload-params offload-params"},
    {kEngine, kValue, "cpu-offload-gb offload-group-size", "0|0.0", "weights stay on the device"},
    {kEngine, kValue, "offload-num-in-group offload-prefetch-step"},
    {kEngine, kValue, "prefix-caching-hash-algo prefix-cache-retention-interval"},
    {kEngine, kValue, "safetensors-load-strategy safetensors-prefetch-num-threads"},
    {kEngine, kValue, "safetensors-prefetch-block-size model-loader-extra-config"},
    {kEngine, kValue, "pt-load-map-location max-parallel-loading-workers"},
    {kEngine, kValues, "ignore-patterns"},

    // -- Several devices, machines and replicas.
    {kEngine, kFlag, "enable-expert-parallel enable-ep-weight-filter enable-eplb enable-dbo"},
    {kEngine, kFlag, "disable-custom-all-reduce disable-nccl-for-dp-synchronization numa-bind"},
    {kEngine, kFlag, "enable-batch-sharded-sampling enable-shm-tensor-arena dcp-q-replicate"},
    {kEngine, kFlag, "ray-workers-use-nsight enable-fault-tolerance"},
    {kEngine, kValue, "all2all-backend ubatch-size dbo-decode-token-threshold eplb-config"},
    {kEngine, kValue, "dbo-prefill-token-threshold expert-placement-strategy dp-sync-interval"},
    {kEngine, kValue, "num-redundant-experts eplb-window-size eplb-step-interval"},
    {kEngine, kFlag, "eplb-log-balancedness"},
    {kEngine, kValue, "dcp-comm-backend dcp-kv-cache-interleave-size fault-tolerance-config"},
    {kEngine, kValue, "cp-kv-cache-interleave-size elastic-ep-max-dp-size"},
    {kEngine, kValue, "master-addr master-port distributed-timeout-seconds"},
    {kEngine, kValue, "cpu-distributed-timeout-seconds"},
    {kEngine, kValues, "numa-bind-nodes numa-bind-cpus"},
    {kEngine, kFlag, "worker-use-ray enable-elastic-ep", "false",
     "the ranks are processes of this machine"},
    {kEngine, kValue, "distributed-executor-backend", "mp|uni|external_launcher",
     "the ranks are processes of this machine"},
    {kEngine, kValue, "pipeline-parallel-size decode-context-parallel-size", "1",
     "a model is divided only by --tensor-parallel-size"},
    {kEngine, kValue, "prefill-context-parallel-size", "1",
     "a model is divided only by --tensor-parallel-size"},
    {kEngine, kValue, "nnodes", "1", "a model runs on one machine"},
    {kEngine, kValue, "node-rank", "0", "a model runs on one machine"},
    {kEngine, kValue, "device-ids", "", "CUDA_VISIBLE_DEVICES chooses the GPUs"},
    {kEngine, kValue, "data-parallel-size data-parallel-size-local", "1",
     "start one server for each replica, behind a router"},
    {kEngine, kValue, "data-parallel-rank data-parallel-start-rank", "0",
     "start one server for each replica, behind a router"},
    {kEngine, kFlag, "data-parallel-hybrid-lb data-parallel-external-lb", "false",
     "start one server for each replica, behind a router"},
    {kEngine, kFlag, "data-parallel-multi-port-external-lb", "false",
     "start one server for each replica, behind a router"},
    {kEngine, kValue, "data-parallel-address data-parallel-rpc-port data-parallel-backend"},

    // -- The model, its files and its tokenizer.
    {kEngine, kFlag, "trust-remote-code allow-deprecated-quantization"},
    {kEngine, kValue, "code-revision tokenizer-pool-size tokenizer-pool-type"},
    {kEngine, kValue, "tokenizer-pool-extra-config renderer-num-workers"},
    {kEngine, kValue, "intial-incremental-detokenization-offset"},
    {kEngine, kValue, "tokenizer", "MODEL", "the tokenizer is the one in the model's folder"},
    {kEngine, kValue, "hf-config-path", "MODEL", "config.json is the one in the model's folder"},
    {kEngine, kValue, "tokenizer-revision", "main", "--revision is that of all files"},
    {kEngine, kValue, "tokenizer-mode", "auto|hf|slow",
     "the tokenizer is the checkpoint's tokenizer.json"},
    {kEngine, kFlag, "skip-tokenizer-init", "false",
     "a folder without tokenizer.json works with prompts of token ids"},
    {kEngine, kValue, "hf-token", "",
     "set HF_TOKEN: other users of the machine see the command line"},
    {kEngine, kValue, "config-format", "auto|hf", "checkpoints have Hugging Face's layout"},
    {kEngine, kValue, "model-impl", "auto|vllm", "there is one implementation of each model"},
    {kEngine, kValue, "model-class-overrides", "", "there is one implementation of each model"},
    {kEngine, kValue, "rope-theta", "",
     R"(use --hf-overrides '{"rope_parameters": {"rope_type": "default", "rope_theta": ...}}')"},
    {kEngine, kValue, "quantization-config quantization-param-path", "",
     "how weights are quantized is read from the checkpoint"},
    {kEngine, kValues, "kv-cache-dtype-skip-layers", "", "all layers have one --kv-cache-dtype"},
    {kEngine, kValue, "task runner", "auto|generate", "models only generate text"},
    {kEngine, kValue, "convert", "auto|none", "models only generate text"},
    {kEngine, kValue, "pooler-config override-pooler-config", "", "models only generate text"},
    {kEngine, kValue, "diffusion-config", "", "models generate text token by token"},

    // -- Images, sound and video, which no model here reads.
    {kEngine, kFlag, "language-model-only enable-mm-embeds interleave-mm-strings"},
    {kEngine, kFlag, "skip-mm-profiling disable-mm-preprocessor-cache mm-device-do-normalize"},
    {kEngine, kFlag, "disable-mm-processor-cache enable-tower-connector-lora"},
    {kEngine, kValue, "limit-mm-per-prompt media-io-kwargs mm-processor-kwargs"},
    {kEngine, kValue, "mm-processor-cache-gb mm-processor-cache-type mm-hasher-algorithm"},
    {kEngine, kValue, "mm-shm-cache-max-object-size-mb mm-encoder-tp-mode mm-tensor-ipc"},
    {kEngine, kValue, "mm-encoder-attn-backend mm-encoder-attn-dtype mm-processor-device"},
    {kEngine, kValue, "mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path"},
    {kEngine, kValue, "mm-encoder-fp8-scale-save-margin mm-ipc-gpu-memory-gb"},
    {kEngine, kValue, "video-pruning-rate video-pruning-method allowed-local-media-path"},
    {kEngine, kValues, "allowed-media-domains"},
    {kEngine, kFlag, "mm-encoder-only", "false", "models read text"},

    // -- What generates and constrains an answer.
    {kEngine, kValue, "guided-decoding-backend structured-outputs-config reasoning-config"},
    {kEngine, kFlag, "guided-decoding-disable-fallback enable-reasoning"},
    {kEngine, kFlag, "guided-decoding-disable-any-whitespace"},
    {kEngine, kFlag, "guided-decoding-disable-additional-properties"},
    {kEngine, kValue, "scheduling-policy", "fcfs", "requests are served first come, first served"},
    {kEngine, kValue, "scheduler-cls worker-extension-cls", "", "there is no Python in the engine"},
    {kEngine, kValue, "worker-cls", "auto", "there is no Python in the engine"},
    {kEngine, kValues, "logits-processors", "", "there is no Python in the engine"},
    {kEngine, kValue, "logits-processor-pattern io-processor-plugin", "",
     "there is no Python in the engine"},
    {kEngine, kFlag, "enable-prompt-embeds", "false", "a prompt is a text or token ids"},
    {kEngine, kFlag, "enable-return-routed-experts return-sampling-mask", "false",
     "no result has a place for it"},
    {kEngine, kValue, "aux-output-config watermark-config", "", "no result has a place for it"},
    {kEngine, kValue, "speculative-config spec-method spec-model spec-tokens", "",
     "speculative decoding is not supported"},
    {kEngine, kValue, "speculative-model num-speculative-tokens", "",
     "speculative decoding is not supported"},
    {kEngine, kFlag, "disable-logprobs-during-spec-decoding speculative-disable-mqa-scorer"},
    {kEngine, kValue, "speculative-model-quantization speculative-draft-tensor-parallel-size"},
    {kEngine, kValue, "speculative-max-model-len speculative-disable-by-batch-size"},
    {kEngine, kValue, "ngram-prompt-lookup-max ngram-prompt-lookup-min"},
    {kEngine, kValue, "spec-decoding-acceptance-method"},
    {kEngine, kValue, "typical-acceptance-sampler-posterior-threshold"},
    {kEngine, kValue, "typical-acceptance-sampler-posterior-alpha"},
    {kEngine, kFlag, "enable-lora enable-prompt-adapter", "false",
     "adapters, such as LoRA's, are not supported"},
    {kEngine, kValues, "lora-modules prompt-adapters", "",
     "adapters, such as LoRA's, are not supported"},
    {kEngine, kValue, "default-mm-loras qlora-adapter-name-or-path", "",
     "adapters, such as LoRA's, are not supported"},
    {kEngine, kValue, "max-loras max-lora-rank lora-dtype max-cpu-loras lora-extra-vocab-size"},
    {kEngine, kValue, "max-prompt-adapters max-prompt-adapter-token max-lora-cls-labels"},
    {kEngine, kValue, "long-lora-scaling-factors"},
    {kEngine, kValues, "lora-target-modules"},
    {kEngine, kFlag, "fully-sharded-loras enable-lora-bias specialize-active-lora"},
    {kEngine, kFlag, "enable-mixed-moe-lora-format enable-moe-shared-loras"},
    {kEngine, kFlag, "enable-sleep-mode", "false", "a model's memory is freed when it ends"},
    {kEngine, kFlag, "sleep-mode-offload-cudagraph"},
    {kEngine, kValue, "sleep-mode-backend"},
    {kEngine, kValues, "sleep-preserve-parameter-names"},
    {kEngine, kValue, "kv-transfer-config ec-transfer-config", "",
     "the KV cache cannot be transferred"},
    {kEngine, kValue, "kv-events-config", "", "events of the KV cache are not published"},
    {kEngine, kValue, "weight-transfer-config", "", "weights are read only from a checkpoint"},
    {kEngine, kValue, "ec-manager-config"},
    {kEngine, kFlag, "enable-trace-replay", "false", "--trace FILE writes a trace"},

    // -- Logs and statistics.
    {kEngine, kFlag, "disable-log-stats enable-log-requests disable-log-requests"},
    {kEngine, kFlag, "aggregate-engine-logging fail-on-environ-validation jit-monitor-verbose"},
    {kEngine, kFlag, "enable-logging-iteration-details enable-layerwise-nvtx-tracing"},
    {kEngine, kFlag, "enable-mfu-metrics kv-cache-metrics cudagraph-metrics"},
    {kEngine, kValue, "logging-config log-config-file max-log-len otlp-traces-endpoint"},
    {kEngine, kValue, "show-hidden-metrics-for-version collect-detailed-traces"},
    {kEngine, kValue, "kv-cache-metrics-sample custom-histogram-buckets jit-monitor-mode"},
    {kEngine, kValue, "per-request-spec-decode-metrics profiler-config watchdog-config"},
    {kEngine, kValues, "served-model-name"},  // an option of `serve`

    // -- The server.
    {kServer, kFlag, "enable-auto-tool-choice exclude-tools-when-tool-choice-none"},
    {kServer, kFlag, "enable-prompt-tokens-details enable-request-id-headers"},
    {kServer, kFlag, "enable-server-load-tracking enable-tokenizer-info-endpoint"},
    {kServer, kFlag, "disable-frontend-multiprocessing disable-fastapi-docs enable-offline-docs"},
    {kServer, kFlag, "enable-log-deltas log-error-stack cohere-is-reasoning-model"},
    {kServer, kFlag, "enable-flash-late-interaction trust-request-mm-kwargs enable-ssl-refresh"},
    {kServer, kValue, "root-path sse-keep-alive-interval cohere-format fingerprint-mode"},
    {kServer, kValue, "fingerprint-value anthropic-disabled-thinking-effort ssl-ciphers"},
    {kServer, kValue, "h11-max-incomplete-event-size h11-max-header-count ssl-cert-reqs"},
    {kServer, kValue, "data-parallel-supervisor-port dp-supervisor-probe-interval-s"},
    {kServer, kValue, "dp-supervisor-probe-timeout-s dp-supervisor-probe-failure-threshold"},
    {kServer, kValue, "tool-strict-level"},
    {kServer, kValue, "max-num-queued-reqs", "", "use --max-queued-requests"},
    {kServer, kValue, "api-server-count", "1", "one thread serves all connections"},
    {kServer, kValue, "response-role", "assistant", "answers have the role assistant"},
    {kServer, kValue, "chat-template-content-format", "auto", "it is found out from the template"},
    {kServer, kValue, "tool-call-parser", "hermes|qwen3", "tool calls are read in the Hermes form"},
    {kServer, kValue, "reasoning-parser", "qwen3|deepseek_r1",
     "thoughts are read between <think> and </think>"},
    {kServer, kValue, "tool-parser-plugin reasoning-parser-plugin middleware", "",
     "there is no Python in the server"},
    {kServer, kValue, "tool-server", "", "the server calls no tools itself"},
    {kServer, kValue, "reasoning-effort-map", "", "reasoning_effort reaches the template as it is"},
    {kServer, kValue, "ssl-keyfile ssl-certfile ssl-ca-certs", "",
     "the server speaks no TLS; let the gateway do it"},
    {kServer, kFlag, "grpc", "false", "the server speaks HTTP"},
    {kServer, kValue, "grpc-port", "", "the server speaks HTTP"},
    {kServer, kFlag, "headless tokens-only enable-scale-out", "false",
     "one process has the engine and the whole API"},
    {kServer, kValue, "config", "", "options are read only from the command line"},
    {kServer, kFlag, "trust-request-chat-template", "false",
     "a template of a request is never used"},
    {kServer, kFlag, "return-tokens-as-token-ids", "false", "use return_token_ids in the request"},
    {kServer, kFlag, "enable-force-include-usage", "false",
     "use stream_options.include_usage in the request"},
    {kServer, kFlag, "enable-per-request-metrics", "false",
     "the access log has the times of each request"},
    {kServer, kFlag, "enable-log-outputs", "false", "texts of clients are not logged"},

    // -- `vllm bench throughput` and `vllm bench latency`.
    {kBench, kFlag, "async-engine prequeue-requests disable-detokenize no-oversample"},
    {kBench, kValue, "num-iters-warmup"},
    {kBench, kValue, "backend", "vllm", "only this engine is measured"},
    {kBench, kFlag, "profile", "false", "--trace FILE writes all steps"},
    {kBench, kValue, "output-json", "", "use --json, which writes to stdout"},
    {kBench, kValue, "dataset-name dataset-path", "",
     "use --dataset FILE, whose lines are described in 'nanovllm generate --help'"},
    {kBench, kValue, "input-len output-len prefix-len", "",
     "use bench latency, or lines of --dataset FILE with these lengths"},

    // -- `vllm bench serve`.
    {kBenchServe, kFlag, "trust-remote-code disable-tqdm ignore-eos skip-tokenizer-init"},
    {kBenchServe, kValue, "tokenizer tokenizer-mode label metadata request-id-prefix"},
    {kBenchServe, kValue, "ready-check-timeout-sec percentile-metrics metric-percentiles"},
    {kBenchServe, kValue, "random-range-ratio random-prefix-len", "0|0.0",
     "all random prompts and answers have one length"},
    {kBenchServe, kValue, "num-warmups", "0", "every request is measured"},
    {kBenchServe, kValue, "burstiness", "1|1.0", "requests arrive as a Poisson process"},
    {kBenchServe, kValue, "backend", "vllm|openai|openai-chat", "the server has OpenAI's API"},
    {kBenchServe, kValue, "endpoint", "/v1/completions|/v1/chat/completions",
     "the form of a request decides about it"},
    {kBenchServe, kValue, "host port", "", "use --base-url"},
    {kBenchServe, kValue, "served-model-name", "", "--model is the name that requests have"},
    {kBenchServe, kValue, "dataset-name", "random",
     "use --dataset FILE, --trace FILE or --random-input-len TOKENS"},
    {kBenchServe, kValue, "dataset-path input-len output-len", "",
     "use --dataset FILE, --trace FILE or --random-input-len TOKENS"},
    {kBenchServe, kFlag, "save-result save-detailed append-result", "false",
     "use --json, which writes to stdout"},
    {kBenchServe, kValue, "result-dir result-filename", "", "use --json, which writes to stdout"},
    {kBenchServe, kFlag, "profile", "false", "serve --trace FILE writes all steps"},

    // -- Fields of requests, and arguments in Python.
    {kLine | kBody, kValue, "tool_choice", R"("auto")"},
    {kLine | kBody, kValue, "spaces_between_special_tokens", "true"},
    {kLine | kBody | kSampling, kValue, "truncate_prompt_tokens", ""},
    {kLine | kBody | kSampling, kValue, "include_stop_str_in_output", "false"},
    // A line of one's own may use the names from here on for something else.
    {kBody, kValue, "parallel_tool_calls include_reasoning add_generation_prompt", "true"},
    {kBody, kValue, "functions", "[]"},
    {kBody, kValue, "function_call", R"("auto")"},
    {kBody, kValue, "modalities", R"(["text"])"},
    {kBody, kValue, "audio web_search_options chat_template prompt_embeds", ""},
    {kBody, kValue, "echo continue_final_message return_tokens_as_token_ids", "false"},
    {kBody, kValue, "suffix", R"("")"},
    {kBody | kSampling, kValue, "best_of", "1"},  // in Python also the value of n
    {kBody | kSampling, kValue, "length_penalty", "1.0"},
    {kBody | kSampling, kValue, "use_beam_search", "false"},
    {kBody | kSampling, kValue, "logits_processors", "[]"},
    {kSampling, kValue, "early_stopping flat_logprobs", "false"},
    {kSampling, kValue, "spaces_between_special_tokens skip_clone", "true|false"},
    {kSampling, kValue, "output_kind extra_args", ""},
    {kCall, kValue, "lora_request prompt_adapter_request tokenization_kwargs", ""},
    {kCall, kValue, "guided_options_request", ""},
    {kCall, kValue, "priority", "LIST"},  // the order is first come, first served
    {Place::kChat, kValue, "chat_template_content_format", R"("auto"|"string")"},
    {Place::kChat, kValue, "mm_processor_kwargs", ""},
    {Place::kMessages, kValue, "mcp_servers container", "[]|{}"},
    {Place::kResponses, kValue, "conversation prompt", ""},
});

bool is_one_of(std::string_view text, std::string_view values) {
  for (;;) {
    const size_t end = std::min(values.find('|'), values.size());
    if (values.substr(0, end) == text) return true;
    if (end == values.size()) return false;
    values.remove_prefix(end + 1);
  }
}

std::vector<UnsupportedName> make_names() {
  std::vector<UnsupportedName> list;
  for (const Row& row : kRows)
    for (std::string_view names = row.names; !names.empty();) {
      const size_t end = std::min(names.find(' '), names.size());
      list.push_back({names.substr(0, end), row.places, row.takes, row.harmless, row.reason});
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  std::ranges::stable_sort(list, {}, &UnsupportedName::name);
  return list;
}

}  // namespace

bool UnsupportedName::is_harmless(std::string_view value,
                                  std::span<const std::string> model) const {
  if (harmless == "*" || is_one_of(value, "|None|null|{}|[]") || is_one_of(value, harmless))
    return true;
  return harmless == "MODEL" && std::ranges::find(model, value) != model.end();
}

void UnsupportedName::check(std::string_view value, std::span<const std::string> model,
                            std::string_view shown) const {
  require(is_harmless(value, model), "{} is not supported: {}", shown, reason);
}

std::string UnsupportedName::harmless_json() const {
  if (harmless == "LIST") return std::string(harmless);
  std::string list = "[" + std::string(harmless) + "]";
  std::ranges::replace(list, '|', ',');
  return list;
}

bool UnsupportedName::is_harmless_json(const Json& value) const {
  if (value.is_null()) return true;
  const Json values = Json::parse(harmless_json());
  return std::ranges::find(values, value) != values.end();
}

const std::vector<UnsupportedName>& unsupported_names() {
  static const std::vector<UnsupportedName> names = make_names();
  return names;
}

const UnsupportedName* find_unsupported(std::string name, uint32_t places) {
  constexpr uint32_t kOptions = kEngine | kServer | kBench | kBenchServe;
  if ((places & kOptions) != 0) std::ranges::replace(name, '_', '-');
  for (const UnsupportedName& found : std::ranges::equal_range(
           unsupported_names(), std::string_view(name), {}, &UnsupportedName::name))
    if ((found.places & places) != 0) return &found;
  return nullptr;
}

bool refuse_unsupported(const std::string& name, const Json& value, uint32_t places) {
  const UnsupportedName* found = find_unsupported(name, places);
  if (found == nullptr) return false;
  require(found->is_harmless_json(value), "{} {} is not supported", name, printable(value));
  return true;
}

}  // namespace nanovllm
