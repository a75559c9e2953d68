#include "apps/cli/vllm_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

namespace {

struct VllmOption {
  const char* name;
  const char* values;  ///< those that change nothing, separated by '|'; "": any
  const char* reason;  ///< why others are refused
};

/// Flags that ask for what is always so, or for what does not exist here.
constexpr const char* kNeutralFlags[] = {
    "--enable-prefix-caching",
    "--enable-chunked-prefill",
    "--async-scheduling",
    "--disable-log-requests",
    "--no-enable-log-requests",
    "--disable-log-stats",
    "--trust-remote-code",
    "--enable-auto-tool-choice",
    "--enable-prompt-tokens-details",
    "--enable-request-id-headers",
    "--enable-server-load-tracking",
    "--disable-frontend-multiprocessing",
    "--disable-fastapi-docs",
    "--disable-custom-all-reduce",
};

constexpr VllmOption kValues[] = {
    {"--root-path", "", ""},
    {"--max-log-len", "", ""},
    {"--swap-space", "", ""},
    {"--max-parallel-loading-workers", "", ""},
    {"--pipeline-parallel-size", "1", "a model is divided only by --tensor-parallel-size"},
    {"--data-parallel-size", "1", "start one server for each replica, behind a router"},
    {"--api-server-count", "1", "one thread serves all connections"},
    {"--nnodes", "1", "a model runs on one machine"},
    {"--distributed-executor-backend", "mp|uni", "the ranks are processes of this machine"},
    {"--tokenizer-mode", "auto|hf", "the tokenizer is the checkpoint's tokenizer.json"},
    {"--config-format", "auto|hf", "checkpoints have Hugging Face's layout"},
    {"--model-impl", "auto|vllm", "there is one implementation of each model"},
    {"--task", "auto|generate", "models only generate text"},
    {"--runner", "auto|generate", "models only generate text"},
    {"--scheduling-policy", "fcfs", "requests are served first come, first served"},
    {"--cpu-offload-gb", "0", "weights stay on the device"},
    {"--response-role", "assistant", "answers have the role assistant"},
    {"--chat-template-content-format", "auto", "it is found out from the template"},
    {"--tool-call-parser", "hermes|qwen3", "tool calls are read in the Hermes form"},
    {"--reasoning-parser", "qwen3|deepseek_r1", "thoughts are read between <think> and </think>"},
};

/// What this program cannot do, whatever the value.
constexpr VllmOption kRefused[] = {
    {"--ssl-keyfile", nullptr, "the server speaks no TLS; let the gateway do it"},
    {"--ssl-certfile", nullptr, "the server speaks no TLS; let the gateway do it"},
    {"--middleware", nullptr, "there is no Python in the server"},
    {"--config", nullptr, "options are read only from the command line"},
    {"--tokenizer", nullptr, "the tokenizer is the one in the model's folder"},
    {"--enable-lora", nullptr, "LoRA adapters are not supported"},
    {"--lora-modules", nullptr, "LoRA adapters are not supported"},
    {"--speculative-config", nullptr, "speculative decoding is not supported"},
    {"--kv-transfer-config", nullptr, "the KV cache cannot be transferred"},
    {"--kv-events-config", nullptr, "events of the KV cache are not published"},
    {"--no-enable-chunked-prefill", nullptr, "long prompts are always computed in chunks"},
    {"--trust-request-chat-template", nullptr, "a template of a request is never used"},
    {"--return-tokens-as-token-ids", nullptr, "use return_token_ids in the request"},
    {"--enable-force-include-usage", nullptr, "use stream_options.include_usage in the request"},
    {"--enable-log-outputs", nullptr, "texts of clients are not logged"},
};

bool is_one_of(std::string_view text, std::string_view values) {
  while (!values.empty()) {
    const size_t end = std::min(values.find('|'), values.size());
    if (values.substr(0, end) == text) return true;
    values.remove_prefix(std::min(end + 1, values.size()));
  }
  return false;
}

}  // namespace

void add_vllm_options(CLI::App& app) {
  constexpr const char* kHidden = "";
  for (const char* name : kNeutralFlags) app.add_flag(name)->group(kHidden);
  for (const VllmOption& option : kValues) {
    const auto accept = [&option](const CLI::results_t& given) {
      for (const std::string& value : given)
        require(*option.values == '\0' || is_one_of(value, option.values),
                "{} {} is not supported: {}", option.name, value, option.reason);
      return true;
    };
    app.add_option(option.name, accept)->take_last()->group(kHidden);
  }
  for (const VllmOption& option : kRefused) {
    const auto refuse = [&option](const CLI::results_t&) -> bool {
      fail("{} is not supported: {}", option.name, option.reason);
    };
    app.add_option(option.name, refuse)->expected(0, 1)->group(kHidden);
  }
}

std::vector<std::string> texts_of(const std::string& option,
                                  const std::vector<std::string>& given) {
  std::vector<std::string> texts;
  for (const std::string& text : given) {
    if (!text.starts_with('[')) {
      texts.push_back(text);
      continue;
    }
    for (const Json& item : parse_json(text, option)) {
      require(item.is_string(), "{}: {} is not a list of texts", option, text);
      texts.push_back(item.get<std::string>());
    }
  }
  for (const std::string& text : texts)
    require(!text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; }),
            "{}: '{}' must be printable ASCII without spaces", option, text);
  return texts;
}

}  // namespace nanovllm
