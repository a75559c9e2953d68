#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/engine/request_factory.h"
#include "nanovllm/hub/verify.h"
#include "nanovllm/params/generation_config.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/chat_template.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct InfoOptions {
  std::string model;
  EngineConfig config;
  bool json = false;
};

/// What is known about a checkpoint and how this machine would run it. A part that could not be
/// read is empty, and `reasons` says why.
struct Report {
  std::optional<ModelSpec> model;
  std::optional<CheckpointSize> files;
  std::unique_ptr<const Tokenizer> tokenizer;
  bool has_template = false;
  std::unique_ptr<Backend> backend;
  std::string device_reason;  // why the device was chosen
  std::optional<EngineSetup> setup;
  std::vector<std::string> reasons;  // why the checkpoint could not run

  size_t kv_bytes_per_token() const { return model->kv_bytes_per_token(setup->kv_dtype); }
  int64_t kv_tokens() const { return setup->num_blocks * setup->config.block_size; }
  size_t kv_bytes() const { return kv_bytes_per_token() * static_cast<size_t>(kv_tokens()); }
  /// The most bytes that the cache takes while few sequences run.
  size_t kept_kv_bytes() const {
    return kv_bytes_per_token() *
           static_cast<size_t>(std::min(setup->num_kept_blocks, setup->num_blocks) *
                               setup->config.block_size);
  }
  /// Bytes of weights, KV cache and block tables: on each GPU, or of all ranks together on the CPU.
  size_t needed_bytes() const {
    const bool cuda = setup->config.device == "cuda";
    const auto world = static_cast<size_t>(setup->config.tensor_parallel_size);
    return (setup->weight_bytes + kv_bytes()) / (cuda ? world : 1) +
           setup->table_bytes() * (cuda ? 1 : world);
  }
};

/// The backend that a run would use. `reason` becomes the reason for it.
std::unique_ptr<Backend> choose_device(EngineConfig& config, std::string& reason) {
  if (config.device != "auto") {
    reason = "--device " + config.device;
    return make_backend(config);
  }
  EngineConfig cuda = config;
  cuda.device = "cuda";
  try {
    std::unique_ptr<Backend> backend = make_backend(cuda);
    config = cuda;
    reason = "there is a GPU";
    return backend;
  } catch (const std::exception& e) {
    reason = e.what();
  }
  return make_backend(config);
}

Report examine(const InfoOptions& options) {
  const std::string& folder = options.model;
  Report report;
  const auto try_to = [&](const auto& part) {
    try {
      part();
    } catch (const UserError& e) {
      report.reasons.push_back(e.what() + hub::verify_hint(folder, e.what()));
    }
  };
  try_to([&] { report.model = load_model_spec(folder, options.config); });
  if (report.model && options.config.load_format != "dummy")
    try_to([&] { report.files = check_weights(folder, *report.model); });
  try_to([&] {
    if (path_exists(folder + "/tokenizer.json")) report.tokenizer = Tokenizer::load(folder);
  });
  try_to([&] { report.has_template = ChatTemplate::load(folder).has_value(); });
  try_to([&] { GenerationConfig().apply(folder, {}); });
  EngineConfig config = options.config;
  try_to([&] { report.backend = choose_device(config, report.device_reason); });
  if (report.model && report.backend)
    try_to([&] { report.setup = resolve_setup(folder, config, *report.backend); });
  return report;
}

Json to_json(const Report& r) {
  Json json = {{"would_run", r.reasons.empty()}, {"reasons", r.reasons}};
  if (r.model) {
    const ModelSpec& m = *r.model;
    json.update({{"architecture", m.architecture},
                 {"num_parameters", m.num_parameters()},
                 {"num_layers", m.num_layers()},
                 {"hidden_size", m.hidden_size},
                 {"num_attention_heads", m.attention().num_heads},
                 {"num_key_value_heads", m.attention().num_kv_heads},
                 {"head_dim", m.attention().head_dim},
                 {"vocab_size", m.vocab_size},
                 {"eos_token_ids", end_tokens(m, r.tokenizer.get())},
                 {"max_position_embeddings", m.max_position_embeddings}});
    if (m.quantization) json["quantization"] = m.quantization->description;
    if (const MlpSpec experts = m.experts(); experts.num_experts > 0)
      json.update({{"num_experts", experts.num_experts},
                   {"num_experts_per_tok", experts.experts_per_token},
                   {"moe_intermediate_size", experts.size},
                   {"num_expert_layers", m.num_expert_layers()}});
  }
  if (r.files)
    json.update({{"num_weight_files", r.files->num_files},
                 {"num_tensors", r.files->num_tensors},
                 {"weight_file_bytes", r.files->bytes}});
  json["tokenizer_vocab_size"] = r.tokenizer ? Json(r.tokenizer->vocab_size()) : Json();
  json["has_chat_template"] = r.has_template;
  if (r.backend) {
    const Memory memory = r.backend->memory();
    json.update({{"device_reason", r.device_reason},
                 {"kernels", r.backend->describe()},
                 {"memory_total_bytes", memory.total},
                 {"memory_free_bytes", memory.free}});
  }
  if (r.setup) {
    const EngineConfig& c = r.setup->config;
    json.update({{"device", c.device},
                 {"dtype", dtype_name(r.setup->dtype)},
                 {"weight_bytes", r.setup->weight_bytes},
                 {"max_model_len", c.max_model_len},
                 {"kv_cache_dtype", dtype_name(r.setup->kv_dtype)},
                 {"kv_bytes_per_token", r.kv_bytes_per_token()},
                 {"kv_cache_tokens", r.kv_tokens()},
                 {"kv_cache_bytes", r.kv_bytes()},
                 {"kv_cache_kept_bytes", r.kept_kv_bytes()},
                 {"block_table_bytes", r.setup->table_bytes()},
                 {"memory_needed_bytes", r.needed_bytes()},
                 {"num_blocks", r.setup->num_blocks},
                 {"block_size", c.block_size},
                 {"max_num_seqs", c.max_num_seqs},
                 {"max_num_batched_tokens", c.max_num_batched_tokens},
                 {"kernel_choices", r.backend->describe_cache(choice_cache(c))}});
  }
  return json;
}

std::string human_bytes(size_t bytes) {
  constexpr double kMiB = 1 << 20, kGiB = 1 << 30;
  const auto x = static_cast<double>(bytes);
  return x < kGiB ? fmt::format("{:.1f} MiB", x / kMiB) : fmt::format("{:.2f} GiB", x / kGiB);
}

std::string to_text(const Report& r) {
  std::string text;
  const auto line = [&](const char* name, const std::string& what) {
    text += fmt::format("{:<16}{}\n", name, what);
  };
  if (r.model) {
    const ModelSpec& m = *r.model;
    line("architecture", m.architecture);
    line("parameters", fmt::format("{:.1f} M", static_cast<double>(m.num_parameters()) / 1e6));
    line("shape", fmt::format("{} layers, hidden {}, {} heads, {} KV heads of {}", m.num_layers(),
                              m.hidden_size, m.attention().num_heads, m.attention().num_kv_heads,
                              m.attention().head_dim));
    if (const MlpSpec experts = m.experts(); experts.num_experts > 0)
      line("experts",
           fmt::format("{} of {} columns in {} layers, {} for each token", experts.num_experts,
                       experts.size, m.num_expert_layers(), experts.experts_per_token));
    if (m.quantization) {
      const std::string bytes = fmt::format("{:.3g}", m.quantization->bytes_per_value);
      line("quantized", fmt::format("{}; {} byte{} for each weight", m.quantization->description,
                                    bytes, bytes == "1" ? "" : "s"));
    }
    line("vocabulary", fmt::format("{} tokens", m.vocab_size));
  }
  if (r.files)
    line("weights",
         fmt::format("{} tensors in {} file{}, {}", r.files->num_tensors, r.files->num_files,
                     r.files->num_files == 1 ? "" : "s", human_bytes(r.files->bytes)));
  line("tokenizer",
       r.tokenizer ? fmt::format("{} tokens", r.tokenizer->vocab_size()) : "none that can be used");
  if (r.model)
    line("end tokens", fmt::format("{}", fmt::join(end_tokens(*r.model, r.tokenizer.get()), ", ")));
  line("chat template", r.has_template ? "yes" : "none that can be used");
  if (r.setup) {
    const EngineConfig& c = r.setup->config;
    line("dtype", fmt::format("{}; the weights take {}", dtype_name(r.setup->dtype),
                              human_bytes(r.setup->weight_bytes)));
    line("context", fmt::format("{} tokens (the model's own: {})", c.max_model_len,
                                r.model->max_position_embeddings));
    line("KV cache", fmt::format("{}, {} bytes a token; {} tokens in {} blocks of {}",
                                 dtype_name(r.setup->kv_dtype), r.kv_bytes_per_token(),
                                 r.kv_tokens(), r.setup->num_blocks, c.block_size));
    line("step", fmt::format("at most {} tokens of {} sequences", c.max_num_batched_tokens,
                             c.max_num_seqs));
    const Memory memory = r.backend->memory();
    line("needs", fmt::format("up to {}, of which the KV cache takes {}, and block tables {}",
                              human_bytes(r.needed_bytes()), human_bytes(r.kv_bytes()),
                              human_bytes(r.setup->table_bytes())));
    if (r.kept_kv_bytes() < r.kv_bytes())
      line("", fmt::format("taken when used; above {} only if many sequences run at once",
                           human_bytes(r.kept_kv_bytes())));
    line("memory",
         fmt::format("{} of {} are free", human_bytes(memory.free), human_bytes(memory.total)));
    line("device", r.backend->describe());
    line("chosen because", r.device_reason);
    if (const std::string cached = r.backend->describe_cache(choice_cache(c)); !cached.empty())
      line("kernel choices", cached);
  }
  if (r.reasons.empty())
    return text + (r.tokenizer ? "would run\n" : "would run, with prompts of token ids only\n");
  for (const std::string& reason : r.reasons) text += "would not run, because " + reason + "\n";
  return text;
}

int info(const InfoOptions& options) {
  options.config.validate();
  require_model_folder(options.model);
  const Report report = examine(options);
  print_out(options.json ? dump_json(to_json(report)) + "\n" : to_text(report));
  if (report.reasons.empty()) return kExitOk;
  // On a terminal, the report has already shown this.
  if (options.json || ::isatty(STDOUT_FILENO) == 0) print_error(report.reasons.front());
  return kExitUserError;
}

}  // namespace

void add_info(Command program) {
  Command sub = program.add_command("info", "Check a model and show how this machine would run it");
  auto options = std::make_shared<InfoOptions>();
  add_model_argument(sub, options->model);
  sub.add_flag("--json", options->json, "Print one JSON object");
  add_engine_options(sub, options->config);
  for (const char* option : {"--trace", "--logprobs-mode"})  // have no effect without a step
    sub.remove_option(option);
  sub.footer(R"(Examples:
  nanovllm info models/tiny-tales
  nanovllm info models/tiny-tales --block-size 16 --json

It checks config.json, the headers of the weights, the tokenizer and the chat template, chooses
the device, and computes the sizes that a run with the same engine options would have. The last
line is 'would run', or 'would not run, because' and the reason. It does not read the weights.

Exit status: 0 if the model would run; 2 if it would not, or if an option was refused; 130
after Ctrl-C; 143 after SIGTERM; 1 for any other failure.)");
  sub.action([options] { return info(*options); });
}

}  // namespace nanovllm
