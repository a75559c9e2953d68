#include "apps/bench/dataset.h"

#include <memory>
#include <optional>

#include "apps/bench/nano_vllm.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "nanovllm/base/check.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/runtime/setup.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm {

namespace {

std::vector<Prompt> nano_vllm_prompts(const PromptReader& reader) {
  std::vector<Prompt> prompts;
  for (const std::string& line : nano_vllm_requests())
    prompts.push_back(reader.from_line(line, std::ssize(prompts) + 1));
  return prompts;
}

}  // namespace

std::vector<Prompt> read_dataset(const DatasetOptions& options, const LLMEngine& engine) {
  require(options.num_prompts >= 0, "--num-prompts is {}; it must be at least 0",
          options.num_prompts);
  const bool own = options.dataset.empty();
  const std::shared_ptr<const Tokenizer> tokenizer = engine.tokenizer();
  std::optional<ChatTemplate> chat_template;
  if (tokenizer != nullptr && !own)
    chat_template = ChatTemplate::load_for_later(options.model, hub::pull_hint(options.model));
  const PromptReader reader{
      .tokenizer = tokenizer.get(), .chat_template = chat_template, .defaults = {}, .system = {}};
  std::vector<Prompt> prompts = own ? nano_vllm_prompts(reader) : reader.from_file(options.dataset);
  if (options.num_prompts > 0 && static_cast<size_t>(options.num_prompts) < prompts.size())
    prompts.resize(static_cast<size_t>(options.num_prompts));
  require(!prompts.empty(), "{}: contains no prompts", options.dataset);
  for (Prompt& prompt : prompts) {
    require(prompt.error.empty(), "{}", prompt.error);
    if (own)
      for (int32_t& id : prompt.token_ids)
        id = static_cast<int32_t>(id % engine.setup().model.vocab_size);
    try {
      engine.request_factory()->make(prompt.token_ids, prompt.params);
    } catch (const UserError& e) {
      fail("line {}: {}", prompt.line_number, e.what());
    }
  }
  return prompts;
}

void add_dataset_options(Command command, DatasetOptions& options) {
  add_model_argument(command, options.model);
  command.add_file("--dataset", options.dataset,
                   "A prompts file (see generate --help); by default nano-vLLM's 256 sequences");
  command.add_value("--num-prompts", options.num_prompts, "Use only the first N prompts; 0: all")
      .type_name("N")
      .show_default();
  add_engine_options(command, options.config);
}

}  // namespace nanovllm
