#include "apps/bench/dataset.h"

#include <filesystem>
#include <memory>
#include <optional>

#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "nanovllm/base/check.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm {

std::string default_dataset() {
  namespace fs = std::filesystem;
  std::error_code error;  // a path that cannot be read counts as missing
  const fs::path installed = fs::read_symlink("/proc/self/exe", error).parent_path() /
                             "../share/nanovllm/nanovllm_256.jsonl";
  for (const fs::path& place : {installed, fs::path(NANOVLLM_DATASET)})
    if (fs::exists(place, error)) return place.string();
  fail("nanovllm_256.jsonl is neither {} nor {}: give --dataset FILE", installed.string(),
       NANOVLLM_DATASET);
}

std::vector<Prompt> read_dataset(const DatasetOptions& options, const LLMEngine& engine) {
  require(options.num_prompts >= 0, "--num-prompts is {}; it must be at least 0",
          options.num_prompts);
  const bool own = options.dataset.empty();
  const std::shared_ptr<const Tokenizer> tokenizer = engine.tokenizer();
  std::optional<ChatTemplate> chat_template;
  if (tokenizer != nullptr && !own)
    chat_template = ChatTemplate::load_for_later(options.model, hub::pull_hint(options.model));
  const PromptReader reader{.tokenizer = tokenizer.get(),
                            .chat_template = chat_template,
                            .defaults = {},
                            .system = {},
                            .enable_thinking = {}};
  std::vector<Prompt> prompts = reader.from_file(own ? default_dataset() : options.dataset);
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < prompts.size())
    prompts.resize(static_cast<size_t>(options.num_prompts));
  require(!prompts.empty(), "{}: contains no prompts", options.dataset);
  for (Prompt& prompt : prompts) {
    require(prompt.error.empty(), "{}", prompt.error);
    if (own)
      for (int32_t& id : prompt.token_ids)
        id = static_cast<int32_t>(id % engine.setup().model.vocab_size);
    try {
      engine.prepare(prompt.token_ids, prompt.params);
    } catch (const UserError& e) {
      fail("line {}: {}", prompt.line_number, e.what());
    }
  }
  return prompts;
}

void add_dataset_options(CLI::App& command, DatasetOptions& options) {
  add_model_argument(command, options.model);
  add_value(command, "--dataset", options.dataset,
            "A prompts file (see generate --help); by default nano-vLLM's 256 sequences")
      ->type_name("FILE")
      ->check(not_empty());
  add_value(command, "--num-prompts", options.num_prompts, "Use only the first N prompts; 0: all")
      ->type_name("N")
      ->capture_default_str();
  add_engine_options(command, options.config);
}

}  // namespace nanovllm
