#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/batch/batch_run.h"
#include "apps/batch/line_stream.h"
#include "apps/batch/openai_batch.h"
#include "apps/batch/output_file.h"
#include "apps/cli/json_values.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/hub/hub.h"
#include "nanovllm/text/chat_template.h"
#include "prompts.h"
#include "sampling_options.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct GenerateOptions {
  std::string model;
  EngineConfig config;
  SamplingOptions sampling;
  std::vector<std::string> prompts;
  std::string prompts_file;
  bool chat = false;
  std::string system;
  bool no_thinking = false;
  bool json = false;
  std::string output;
  std::string output_format = "json";
  std::string template_defaults;
  bool unordered = false;
  bool quiet = false;

  bool is_openai() const { return output_format == "openai"; }
  bool given(const std::string& field) const {
    return std::ranges::find(sampling.given, field) != sampling.given.end();
  }
};

constexpr const char* kFooter =
    R"(Examples:
  nanovllm generate models/tiny-tales -p "Once upon a time" --temperature 0
  nanovllm generate models/tiny-tales --chat -p "introduce yourself"
  nanovllm generate models/tiny-tales -p "Her name was" --choice Lily --choice Anna
  nanovllm generate models/tiny-tales --prompts-file examples/batch.jsonl \
    --output results.jsonl
  echo '{"prompt": "The king", "n": 3}' |
    nanovllm generate models/tiny-tales --prompts-file - --json

A single prompt on a terminal is answered as plain text. With --chat, sampling values that no option
sets are those of the checkpoint's generation_config.json, and an answer may be as long as the
context allows.

Each line of a prompts file is a JSON object with one of these keys:
  prompt             a text to continue; with --chat, a user's message
  prompt_token_ids   token ids, [1, 2, ...], used unchanged
  messages           [{"role": "user", "content": ...}, ...] for the chat
                     template, optionally with the keys tools,
                     enable_thinking and chat_template_kwargs
  body               a request of OpenAI's batch files,
                     {"custom_id", "method", "url", "body"}

Text must be UTF-8. A line may also have sampling parameters under their names (max_tokens, stop, stop_token_ids, seed,
ignore_eos, skip_special_tokens, logit_bias, allowed_token_ids, bad_words, and structured_outputs for
the form of the answer), directly or as "sampling_params": {...}. They have precedence over the
options. All other keys, such as id, are copied to the line's result.

With --json the result of each prompt is a line {"index", "prompt_token_ids", "token_ids", "text",
"finish_reason", "stop_reason", "num_cached_tokens", "outputs", "usage"}, or {"index", "error"} for
a line that is refused. "outputs" has an object for each of the --n answers; the keys outside it are
those of the first answer.

With --output-format openai the lines of the file are requests of OpenAI's batch files, and a result is
{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}, with the body that
'nanovllm serve' would answer.

With --output a second run with the same file computes only the results that are missing.
)";

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;  // a file that does not exist yet
  return a == b || std::filesystem::equivalent(a, b, error);
}

/// Refuses options that would have no effect or destroy a file.
void check_options(const GenerateOptions& o) {
  require(o.prompts.empty() != o.prompts_file.empty(),
          "generate needs --prompt TEXT or --prompts-file FILE, and not both");
  require(!o.is_openai() || !o.prompts_file.empty(),
          "--output-format openai needs --prompts-file, with lines of OpenAI's batch files");
  for (const auto& [given, option] :
       {std::pair(!o.system.empty(), "--system"), std::pair(o.chat, "--chat")})
    require(!given || !o.is_openai(),
            "{} has no effect with --output-format openai, because the lines say it themselves",
            option);
  const GenerationConfig& generation = o.sampling.generation_config;
  for (const auto& [given, option] :
       {std::pair(generation.source != "auto", "--generation-config"),
        std::pair(!generation.overrides.empty(), "--override-generation-config")})
    require(!given || o.chat || o.is_openai(), "{} needs --chat or --output-format openai", option);
  for (const auto& [given, option] :
       {std::pair(!o.system.empty(), "--system"), std::pair(o.no_thinking, "--no-thinking"),
        std::pair(!o.template_defaults.empty(), "--default-chat-template-kwargs")})
    require(!given || o.chat || !o.prompts_file.empty(),
            "{} needs --chat, or a prompts file with messages", option);
  for (const char* field : {"logprobs", "prompt_logprobs"})
    require(o.json || !o.given(field), "--{} needs --json or --output",
            field == std::string_view("logprobs") ? "logprobs" : "prompt-logprobs");
  for (const auto& [file, option] :
       {std::pair(o.prompts_file, "--prompts-file"), std::pair(o.output, "--output")})
    require(o.config.trace.empty() || !same_file(o.config.trace, file),
            "--trace and {} name the same file", option);
  require(o.config.logprobs_mode == EngineConfig().logprobs_mode || !o.prompts_file.empty() ||
              o.given("logprobs") || o.given("prompt_logprobs"),
          "--logprobs-mode needs --logprobs or --prompt-logprobs");
  require(!o.unordered || !o.prompts_file.empty() || o.prompts.size() > 1,
          "--unordered needs several prompts");
}

/// Prints the answer to a single prompt as it is generated, and then a line about its speed.
int stream(LLMEngine& engine, const Prompt& prompt, bool quiet) {
  require(prompt.error.empty(), "{}", prompt.error);
  const uint64_t id = engine.add(request_of(*engine.request_factory(), prompt));
  RequestOutput output;
  bool ends_line = false;
  for (bool aborted = false; !engine.is_finished();) {
    if (InterruptGuard::interrupted() && !aborted) aborted = engine.abort(id);
    for (RequestUpdate& update : engine.step()) {
      if (!update.text.empty()) {
        print_out(update.text);
        ends_line = update.text.ends_with('\n');
      }
      if (update.finished) output = std::move(*update.finished);
    }
  }
  if (!ends_line) print_out("\n");
  if (!quiet && !output.token_ids.empty()) fmt::print(stderr, "{}\n", speed_of(output));
  if (output.has_error()) throw UserError(output.error);
  return InterruptGuard::interrupted() ? InterruptGuard::exit_status() : kExitOk;
}

/// The Serving for answers to OpenAI's requests, as a server with the same options has it.
std::unique_ptr<const server::Serving> serving_of(const LLMEngine& engine,
                                                  const std::optional<ChatTemplate>& chat_template,
                                                  const GenerateOptions& options,
                                                  const Json& template_defaults) {
  server::AnswerForm answer_form;
  if (chat_template && engine.tokenizer() != nullptr)
    answer_form = server::AnswerForm(*engine.tokenizer(), *chat_template, "auto", "auto");
  return std::unique_ptr<const server::Serving>(
      new server::Serving{.setup = engine.setup(),
                          .requests = *engine.request_factory(),
                          .vocabulary = engine.tokenizer(),
                          .chat_template = chat_template,
                          .answer_form = std::move(answer_form),
                          .defaults = options.sampling.params,
                          .template_defaults = template_defaults,
                          .names = {hub::shown_name(options.model)}});
}

int generate(GenerateOptions options) {
  if (options.output == "-") options.output.clear(), options.json = true;
  options.json = options.json || !options.output.empty() || options.is_openai();
  check_options(options);
  SamplingParams& params = options.sampling.params;
  if (options.chat || options.is_openai()) params = options.sampling.for_chat(options.model);
  params.validate();
  // The files are opened first, so that a mistake is found before the model is loaded.
  std::optional<LineStream> lines;
  if (!options.prompts_file.empty()) lines.emplace(options.prompts_file);
  std::optional<OutputFile> file;
  if (!options.output.empty())
    file.emplace(options.output, options.is_openai() ? kOpenAiResults : kPlainResults);
  Json template_defaults = Json::object();
  if (!options.template_defaults.empty())
    template_defaults = object_of(options.template_defaults, "--default-chat-template-kwargs");
  if (options.no_thinking) template_defaults["enable_thinking"] = false;

  LLMEngine engine = LLMEngine::load(options.model, options.config);
  const std::shared_ptr<const Tokenizer> tokenizer = engine.tokenizer();
  std::optional<ChatTemplate> chat_template;
  if (tokenizer != nullptr)
    chat_template = ChatTemplate::load_for_later(options.model, hub::pull_hint(options.model));
  PromptReader reader{.tokenizer = tokenizer.get(),
                      .chat_template = chat_template,
                      .defaults = params,
                      .chat = options.chat,
                      .system = options.system,
                      .template_defaults = template_defaults};
  std::unique_ptr<const server::Serving> serving;
  std::optional<OpenAiBatch> openai;
  if (options.is_openai()) {
    serving = serving_of(engine, chat_template, options, template_defaults);
    std::optional<int64_t> max_tokens;
    if (options.given("max_tokens")) max_tokens = params.max_tokens;
    openai.emplace(*serving, max_tokens);
  }

  const InterruptGuard guard;
  const bool is_single = options.prompts.size() == 1 && params.n == 1 && !options.json;
  if (is_single && ::isatty(STDOUT_FILENO) == 1)
    return stream(engine, reader.from_text(options.prompts[0]), options.quiet);
  if (file && file->num_lost_bytes() > 0 && !options.quiet)
    fmt::print(
        stderr,
        "{} ended with zero bytes, as after a power failure; the last {} bytes were removed\n",
        escape_controls(options.output), file->num_lost_bytes());
  if (file && file->num_results() > 0 && !options.quiet)
    fmt::print(stderr, "{} has {} results already, which are skipped\n",
               escape_controls(options.output), file->num_results());
  BatchRun run(engine, reader, lines ? &*lines : nullptr, options.prompts,
               {.json = options.json,
                .ordered = !options.unordered,
                .quiet = options.quiet,
                .file = file ? &*file : nullptr,
                .openai = openai ? &*openai : nullptr});
  const int status = run.run();
  if (status == kExitOk && !openai && !run.used_template() &&
      (!options.system.empty() || options.no_thinking))
    fmt::print(
        stderr,
        "warning: no line has messages, so {} had no effect; --chat makes messages of texts\n",
        options.no_thinking ? "--no-thinking" : "--system");
  return status;
}

}  // namespace

void add_generate(Command program) {
  Command sub = program.add_command("generate", "Answer all prompts in one batch");
  auto options = std::make_shared<GenerateOptions>();
  add_model_argument(sub, options->model);
  sub.add_value("-p,--prompt", options->prompts, "A text to continue; repeatable")
      .type_name("TEXT")
      .check(utf8_text());
  sub.add_file("--prompts-file", options->prompts_file, "JSON lines, see below; - for stdin");
  sub.add_flag("--chat", options->chat,
               "Send each text as a user's message through the chat template");
  sub.add_value("--system", options->system,
                "The system message; needs --chat or a prompts file with messages")
      .type_name("TEXT")
      .check(utf8_text());
  sub.add_flag("--no-thinking", options->no_thinking,
               "Ask the chat template for an answer without thinking");
  sub.add_flag("--json", options->json, "Print a JSON line for each prompt");
  sub.add_file("--output", options->output,
               "Append the JSON lines to this file, not to stdout; results that it already has "
               "are not computed again");
  sub.add_choice("--output-format", options->output_format, "json|openai",
                 "The form of the JSON lines; openai: that of OpenAI's batch files, see below");
  sub.add_flag("--unordered", options->unordered,
               "Give out results as they are finished, not in the order of the prompts");
  sub.add_flag("--quiet", options->quiet, "No progress bar and no line about the speed");
  options->sampling.add_to(sub);
  sub.add_value("--default-chat-template-kwargs", options->template_defaults,
                "A JSON object of variables of the chat template that a line may replace")
      .type_name("JSON")
      .check(utf8_text());
  add_engine_options(sub, options->config);
  sub.footer(std::string(kFooter) + kExitStatusHelp);
  sub.action([options, sub] {
    options->sampling.find_given(sub);
    return generate(*options);
  });
}

}  // namespace nanovllm
