#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "commands.h"
#include "line_reader.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/engine/llm_engine.h"
#include "options.h"
#include "prompts.h"
#include "sampling_options.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct ChatOptions {
  std::string model;
  EngineConfig config;
  SamplingOptions sampling;
  std::string system;
  bool no_thinking = false;
};

constexpr const char* kHelp =
    "  /reset         begin a new conversation with the same system message\n"
    "  /system TEXT   begin a new conversation with this system message, or with none\n"
    "  /help          print this list\n"
    "Ctrl-C stops an answer. A second Ctrl-C, or Ctrl-D, ends the program.\n";

/// Dims the text between <think> and </think>, and leaves out the tags and the blank lines at the
/// beginning of the thoughts and of the answer.
class Thoughts {
 public:
  explicit Thoughts(bool begun) : thinking_(begun) {}

  std::string show(const std::string& piece) {
    held_ += piece;
    std::string out;
    for (;;) {
      const std::string_view tag = thinking_ ? "</think>" : "<think>";
      if (const size_t at = held_.find(tag); at != std::string::npos) {
        add(out, held_.substr(0, at));
        if (!at_start_) out += thinking_ ? std::string(kPlain) + "\n\n" : "";
        held_.erase(0, at + tag.size());
        thinking_ = !thinking_;
        at_start_ = true;
        continue;
      }
      // The last characters may be the beginning of a tag.
      size_t keep = std::min(held_.rfind('<'), held_.size());
      if (!tag.starts_with(std::string_view(held_).substr(keep))) keep = held_.size();
      add(out, held_.substr(0, keep));
      held_.erase(0, keep);
      return out;
    }
  }
  std::string finish() {
    std::string out;
    add(out, held_);
    return out + (thinking_ ? kPlain : "");
  }

 private:
  static constexpr const char* kDim = "\x1b[2m";
  static constexpr const char* kPlain = "\x1b[0m";

  void add(std::string& out, std::string text) {
    if (at_start_) {
      text.erase(0, text.find_first_not_of(" \n"));
      if (text.empty()) return;
      at_start_ = false;
      if (thinking_) out += kDim;
    }
    out += text;
  }

  bool thinking_;
  bool at_start_ = true;  // nothing of the current thoughts or answer has been shown yet
  std::string held_;
};

class Chat {
 public:
  Chat(const ChatOptions& options, const SamplingParams& params)
      : terminal_(::isatty(STDOUT_FILENO) != 0),
        engine_(LLMEngine::load(options.model, options.config)),
        tokenizer_(engine_.tokenizer()),
        template_(ChatTemplate::load(options.model)),
        reader_{.tokenizer = tokenizer_.get(),
                .chat_template = template_,
                .defaults = params,
                .chat = true,
                .system = {},
                .enable_thinking = {}} {
    require(tokenizer_ != nullptr && template_.has_value(),
            "{}: chat needs a tokenizer.json and a chat template", options.model);
    if (options.no_thinking) reader_.enable_thinking = false;
    begin(options.system);
  }

  int run() {
    const bool interactive = terminal_ && ::isatty(STDIN_FILENO) != 0;
    LineReader lines(interactive);
    if (interactive) print_out("/help lists the commands.\n");
    while (const auto line = lines.read("> ")) {
      const size_t first = line->find_first_not_of(" \t\r");
      if (first == std::string::npos) continue;
      if ((*line)[first] == '/') command(line->substr(first));
      else if (!turn(*line) && !interactive) return InterruptGuard::exit_status();
    }
    if (interactive) print_out("\n");
    return failed_ && !interactive ? kExitUserError : kExitOk;
  }

 private:
  void begin(const std::string& system) {
    messages_ = Json::array();
    if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  }

  void command(const std::string& line) {
    const size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space);
    const size_t text = line.find_first_not_of(' ', space);
    const std::string rest = text == std::string::npos ? "" : line.substr(text);
    if (name == "/reset") {
      const bool has_system = !messages_.empty() && messages_[0]["role"] == "system";
      begin(has_system ? messages_[0]["content"].get<std::string>() : "");
    } else if (name == "/system") {
      begin(rest);
    } else if (name == "/help") {
      print_out(kHelp);
    } else {
      complain(fmt::format("'{}' is not a command; /help lists them", name));
    }
  }

  void complain(const std::string& what) {
    failed_ = true;
    print_error(what);
  }

  /// Answers one question. Returns false if Ctrl-C stopped the answer.
  bool turn(const std::string& text) {
    const InterruptGuard guard;
    messages_.push_back({{"role", "user"}, {"content", text}});
    Prompt prompt = reader_.from_messages(messages_);
    try {
      require(prompt.error.empty(), "{}", prompt.error);
      const int64_t limit = engine_.setup().config.max_model_len;
      const auto length = static_cast<int64_t>(prompt.token_ids.size());
      require(length < limit,
              "the conversation has {} tokens and the context {}; /reset begins a new one", length,
              limit);
      answer(prompt);
    } catch (const UserError& e) {
      messages_.erase(messages_.size() - 1);
      complain(e.what());
    }
    return !InterruptGuard::interrupted();
  }

  void answer(const Prompt& prompt) {
    const size_t end = prompt.text.find_last_not_of(" \n");
    Thoughts thoughts(std::string_view(prompt.text).substr(0, end + 1).ends_with("<think>"));
    const uint64_t id = engine_.add_request(prompt.token_ids, prompt.params);
    std::string content;
    for (bool aborted = false; !engine_.is_finished();) {
      if (InterruptGuard::interrupted() && !aborted) aborted = engine_.abort(id);
      for (const RequestUpdate& update : engine_.step()) {
        if (terminal_ && !update.text.empty())
          print_styled(thoughts.show(escape_controls(update.text, /*keep_lines=*/true)));
        else if (!update.text.empty()) print_out(update.text);
        if (!update.finished) continue;
        content = update.finished->text;
        if (!update.finished->error.empty()) complain(update.finished->error);
      }
    }
    print_styled((terminal_ ? thoughts.finish() : "") + "\n");
    messages_.push_back({{"role", "assistant"}, {"content", content}});
  }

  bool terminal_;
  LLMEngine engine_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  PromptReader reader_;
  Json messages_;
  bool failed_ = false;
};

}  // namespace

void add_chat(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("chat", "Talk to a model in the terminal");
  auto options = std::make_shared<ChatOptions>();
  add_model_argument(*sub, options->model);
  sub->add_option("--system", options->system, "The system message")->type_name("TEXT");
  sub->add_flag("--no-thinking", options->no_thinking,
                "Ask the chat template for answers without thinking");
  options->sampling.add_to(*sub);
  // A conversation has one answer, shown as text.
  for (const char* name : {"--n", "--logprobs", "--prompt-logprobs"})
    sub->remove_option(sub->get_option(name));
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.generation_config != nullptr)  // the checkpoint's value is the default
      sub->get_option(std::string(field.flag()))->default_str("");
  });
  add_engine_options(*sub, options->config);
  sub->footer(
      std::string("Examples:\n"
                  "  nanovllm chat models/tiny-tales\n"
                  "  nanovllm chat Qwen3-0.6B --no-thinking --temperature 0.7\n"
                  "  printf 'Hello\\nTell me more\\n' | nanovllm chat models/tiny-tales\n"
                  "Sampling options have precedence over the checkpoint's "
                  "generation_config.json. If neither limits\n"
                  "an answer, it may be as long as the context allows. A terminal shows thoughts "
                  "dimmed. Commands in\n"
                  "the conversation:\n") +
      kHelp + kExitStatusHelp);
  sub->callback([&command, options, sub] {
    options->sampling.find_given(*sub);
    command = [options] {
      return Chat(*options, options->sampling.for_chat(options->model)).run();
    };
  });
}

}  // namespace nanovllm
