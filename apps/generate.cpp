#include <algorithm>
#include <map>
#include <memory>

#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/base/terminal/progress.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/text/chat_template.h"
#include "options.h"
#include "output_json.h"
#include "prompts.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct GenerateOptions {
  std::string model;
  EngineConfig config;
  SamplingParams params;
  std::vector<std::string> prompts;
  std::string prompts_file;
  bool chat = false;
  std::string system;
  bool no_thinking = false;
  bool json = false;
};

std::string to_text(const Prompt& prompt, const RequestOutput& output) {
  std::string text = "\nPrompt: ";
  if (prompt.text.empty() && !output.prompt_token_ids.empty())
    text += fmt::format("[{}]\n", fmt::join(output.prompt_token_ids, ", "));
  else text += repr(prompt.text) + "\n";
  const auto add = [&](const CompletionOutput& answer) {
    text += "Completion: " + repr(answer.text) + "\n";
    if (!answer.error.empty()) text += "Error: " + escape_controls(answer.error) + "\n";
  };
  if (output.outputs.empty()) add(output);
  for (const CompletionOutput& answer : output.outputs) add(answer);
  return text;
}

/// Prints the results in the order of the prompts, each as soon as all earlier ones are printed.
class Results {
 public:
  Results(const std::vector<Prompt>& prompts, bool json, ProgressBar& bar)
      : prompts_(prompts), json_(json), bar_(bar) {}

  void add(size_t index, RequestOutput output) {
    num_failed_ += output.has_error() ? 1 : 0;
    ready_.emplace(index, std::move(output));
    for (; !ready_.empty() && ready_.begin()->first == next_; ++next_) {
      print(ready_.begin()->second);
      ready_.erase(ready_.begin());
    }
  }
  size_t num_printed() const { return next_; }
  /// Number of prompts that were refused or have a choice that ended with an error.
  size_t num_failed() const { return num_failed_; }

 private:
  void print(const RequestOutput& output) {
    bar_.hide();
    const Prompt& prompt = prompts_[next_];
    if (!json_) print_out(to_text(prompt, output));
    else if (!prompt.error.empty())
      print_out(dump_json({{"index", next_}, {"error", prompt.error}}) + "\n");
    else print_out(dump_json(to_json(output, static_cast<int64_t>(next_))) + "\n");
  }

  const std::vector<Prompt>& prompts_;
  bool json_;
  ProgressBar& bar_;
  std::map<size_t, RequestOutput> ready_;
  size_t next_ = 0;
  size_t num_failed_ = 0;
};

RequestOutput failed_output(const Prompt& prompt, const std::string& error) {
  RequestOutput output;
  output.prompt_token_ids = prompt.token_ids;
  output.finish_reason = "error";
  output.error = error;
  return output;
}

int generate(const GenerateOptions& options) {
  require(options.prompts.empty() != options.prompts_file.empty(),
          "generate needs --prompt TEXT or --prompts-file FILE, and not both");
  options.params.validate();
  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const std::shared_ptr<const Tokenizer> tokenizer = engine.tokenizer();
  std::optional<ChatTemplate> chat_template;
  if (tokenizer != nullptr) chat_template = ChatTemplate::load(options.model);
  PromptReader reader{.tokenizer = tokenizer.get(),
                      .chat_template = chat_template,
                      .defaults = options.params,
                      .chat = options.chat,
                      .system = options.system,
                      .enable_thinking = {}};
  if (options.no_thinking) reader.enable_thinking = false;
  std::vector<Prompt> prompts;
  if (!options.prompts_file.empty()) prompts = reader.from_file(options.prompts_file);
  for (const std::string& text : options.prompts) prompts.push_back(reader.from_text(text));

  const InterruptGuard guard;
  ProgressBar bar("Generating", static_cast<int64_t>(prompts.size()), stderr_is_terminal());
  Results results(prompts, options.json, bar);
  std::map<uint64_t, size_t> index;
  for (size_t i = 0; i < prompts.size(); ++i) {
    try {
      require(prompts[i].error.empty(), "{}", prompts[i].error);
      index[engine.add_request(prompts[i].token_ids, prompts[i].params)] = i;
    } catch (const UserError& e) {
      results.add(i, failed_output(prompts[i], e.what()));
    }
  }
  int64_t num_done = static_cast<int64_t>(prompts.size() - index.size());
  while (!engine.is_finished() && !InterruptGuard::interrupted()) {
    for (const RequestUpdate& update : engine.step()) {
      if (!update.finished) continue;
      results.add(index.at(update.request_id), *update.finished);
      ++num_done;
    }
    const EngineStats stats = engine.stats();
    bar.update(num_done, stats.prefill_tokens, stats.decode_tokens);
  }
  if (InterruptGuard::interrupted()) return InterruptGuard::exit_status();
  if (results.num_failed() == 0) return kExitOk;
  bar.hide();
  fmt::print(stderr, "error: prompts that were refused or ended with an error: {} of {}\n",
             results.num_failed(), prompts.size());
  return kExitUserError;
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("generate", "Answer all prompts in one batch");
  auto options = std::make_shared<GenerateOptions>();
  add_model_argument(*sub, options->model);
  sub->add_option("--prompt", options->prompts, "A text to continue; repeatable")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  sub->add_option("--prompts-file", options->prompts_file, "JSON lines, see below; - for stdin")
      ->type_name("FILE");
  sub->add_flag("--chat", options->chat,
                "Send each text as a user's message through the chat template");
  sub->add_option("--system", options->system, "The system message; only with --chat")
      ->type_name("TEXT");
  sub->add_flag("--no-thinking", options->no_thinking,
                "Ask the chat template for an answer without thinking");
  sub->add_flag("--json", options->json, "Print a JSON line for each prompt");
  add_sampling_options(*sub, options->params);
  add_engine_options(*sub, options->config);
  sub->footer(
      std::string(
          "Examples:\n"
          "  nanovllm generate models/tiny-tales --prompt \"Once upon a time\" --temperature 0\n"
          "  nanovllm generate models/tiny-tales --chat --prompt \"introduce yourself\" "
          "--max-tokens "
          "256\n"
          "  echo '{\"prompt\": \"The king\", \"sampling_params\": {\"n\": 3}}' |\n"
          "    nanovllm generate models/tiny-tales --prompts-file - --json\n"
          "Each line of a prompts file is a JSON object with one of these keys:\n"
          "  prompt             a text to continue\n"
          "  prompt_token_ids   token ids, [1, 2, ...], used unchanged\n"
          "  messages           [{\"role\": \"user\", \"content\": ...}, ...] for the chat "
          "template, optionally\n"
          "                     with the keys tools, enable_thinking and chat_template_kwargs\n"
          "A line may also have sampling_params: {...}, with the names of the sampling options "
          "(max_tokens,\n"
          "stop, stop_token_ids, seed), ignore_eos, skip_special_tokens, logit_bias, "
          "allowed_token_ids or\n"
          "bad_words. They have precedence over the options.\n"
          "With --json the result of each prompt is a line {\"index\", \"prompt_token_ids\", "
          "\"token_ids\", \"text\",\n"
          "\"finish_reason\", \"stop_reason\", \"num_cached_tokens\"} or {\"index\", \"error\"}, "
          "in "
          "the order of the\n"
          "prompts. With --n above 1 the answers are in \"outputs\".\n") +
      kExitStatusHelp);
  sub->callback([&command, options] { command = [options] { return generate(*options); }; });
}

}  // namespace nanovllm
