#include <algorithm>
#include <memory>

#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/runtime/setup.h"
#include "options.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct InfoOptions {
  std::string model;
  EngineConfig config;
  bool json = false;
};

int info(const InfoOptions& options) {
  EngineConfig config = options.config;
  const std::unique_ptr<Backend> backend = make_backend(config);
  const EngineSetup setup = resolve_setup(options.model, config, *backend);
  const ModelConfig& m = setup.model;
  const size_t kv_bytes = m.kv_bytes_per_token(setup.dtype);
  const int64_t cache_tokens = setup.num_blocks * setup.config.block_size;
  const std::string kernels = backend->describe();
  if (options.json) {
    const Json json = {{"architecture", m.architecture},
                       {"num_parameters", m.num_parameters()},
                       {"dtype", dtype_name(setup.dtype)},
                       {"weight_bytes", setup.weight_bytes},
                       {"num_layers", m.num_layers},
                       {"hidden_size", m.hidden_size},
                       {"num_attention_heads", m.num_heads},
                       {"num_key_value_heads", m.num_kv_heads},
                       {"head_dim", m.head_dim},
                       {"vocab_size", m.vocab_size},
                       {"eos_token_ids", m.eos_token_ids},
                       {"max_position_embeddings", m.max_position_embeddings},
                       {"max_model_len", setup.config.max_model_len},
                       {"kv_bytes_per_token", kv_bytes},
                       {"kv_cache_tokens", cache_tokens},
                       {"num_blocks", setup.num_blocks},
                       {"block_size", setup.config.block_size},
                       {"max_num_seqs", setup.config.max_num_seqs},
                       {"max_num_batched_tokens", setup.config.max_num_batched_tokens},
                       {"device", setup.config.device},
                       {"kernels", kernels}};
    print_out(dump_json(json) + "\n");
    return kExitOk;
  }
  constexpr double kMiB = 1 << 20;
  print_out(fmt::format(
      "architecture   {}\n"
      "parameters     {:.1f} M, {:.1f} MiB as {}\n"
      "shape          {} layers, hidden {}, {} heads, {} KV heads of {}, vocabulary {}\n"
      "context        {} tokens (the model's own: {})\n"
      "KV cache       {} bytes a token; {} tokens in {} blocks of {}, {:.1f} MiB\n"
      "a step         at most {} tokens of {} sequences\n"
      "device         {}: {}\n",
      m.architecture, static_cast<double>(m.num_parameters()) / 1e6,
      static_cast<double>(setup.weight_bytes) / kMiB, dtype_name(setup.dtype), m.num_layers,
      m.hidden_size, m.num_heads, m.num_kv_heads, m.head_dim, m.vocab_size,
      setup.config.max_model_len, m.max_position_embeddings, kv_bytes, cache_tokens,
      setup.num_blocks, setup.config.block_size,
      static_cast<double>(kv_bytes) * static_cast<double>(cache_tokens) / kMiB,
      setup.config.max_num_batched_tokens, setup.config.max_num_seqs, setup.config.device,
      kernels));
  return kExitOk;
}

}  // namespace

void add_info(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("info", "Describe a model and how this machine would run it");
  auto options = std::make_shared<InfoOptions>();
  add_model_argument(*sub, options->model);
  sub->add_flag("--json", options->json, "Print one JSON object");
  add_engine_options(*sub, options->config);
  sub->footer(std::string("Examples:\n"
                          "  nanovllm info models/tiny-tales\n"
                          "  nanovllm info models/tiny-tales --block-size 16 --json\n"
                          "It reads only config.json and the headers of the weights. With engine "
                          "options it describes a run\n"
                          "with these options.\n") +
              kExitStatusHelp);
  sub->callback([&command, options] { command = [options] { return info(*options); }; });
}

}  // namespace nanovllm
