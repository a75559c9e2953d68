#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "apps/chat/conversation.h"
#include "apps/chat/line_reader.h"
#include "apps/chat/params.h"
#include "apps/chat/thoughts.h"
#include "apps/cli/model_argument.h"
#include "apps/cli/options.h"
#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/terminal/capabilities.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/hub/hub.h"
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
  bool quiet = false;
};

/// The text between """ and """, if that is all the user has entered.
std::optional<std::string> block_in(const std::string& text) {
  constexpr std::string_view kSpace = " \t\n";
  const size_t first = text.find_first_not_of(kSpace), last = text.find_last_not_of(kSpace);
  if (first == std::string::npos || last + 1 - first < 2 * kBlock.size()) return std::nullopt;
  std::string block = text.substr(first, last + 1 - first);
  if (!block.starts_with(kBlock) || !block.ends_with(kBlock)) return std::nullopt;
  block = block.substr(kBlock.size(), block.size() - 2 * kBlock.size());
  if (block.starts_with('\n')) block.erase(0, 1);
  if (block.ends_with('\n')) block.pop_back();
  return block;
}

class Chat {
 public:
  Chat(const ChatOptions& options, const SamplingParams& params)
      : options_(options),
        terminal_(::isatty(STDOUT_FILENO) == 1),
        interactive_(terminal_ && ::isatty(STDIN_FILENO) == 1),
        styled_(may_style(STDOUT_FILENO)),
        engine_(LLMEngine::load(options.model, options.config)),
        tokenizer_(engine_.tokenizer()),
        template_(ChatTemplate::load(options.model)),
        reader_{.tokenizer = tokenizer_.get(),
                .chat_template = template_,
                .defaults = params,
                .chat = true,
                .system = {},
                .template_defaults = Json::object()},
        conversation_(options.system) {
    require(tokenizer_ != nullptr && template_.has_value(),
            "{}: chat needs a tokenizer.json and a chat template{}", options.model,
            hub::pull_hint(options.model));
    if (options.no_thinking) reader_.template_defaults["enable_thinking"] = false;
  }

  int run();
  /// A line for each command.
  static std::string help();

 private:
  struct Command {
    const char* name;
    const char* argument;
    const char* help;
    void (Chat::*run)(const std::string& argument);
  };
  static std::span<const Command> commands();

  void hear(const std::string& text);
  void reset(const std::string& argument);
  void set_system(const std::string& argument);
  void regenerate(const std::string& argument);
  void save(const std::string& argument);
  void load(const std::string& argument);
  void params(const std::string& argument);
  void show_help(const std::string& argument);
  void leave(const std::string& argument);

  void say(const std::string& text);
  void ask(Json messages);
  RequestOutput answer(const Prompt& prompt);

  int64_t context() const { return engine_.setup().config.max_model_len; }
  std::string remedy() const;
  void note_context(int64_t num_used) const;
  void note(const std::string& text) const;

  const ChatOptions& options_;
  bool terminal_;     // whether stdout is a terminal
  bool interactive_;  // whether stdin is a terminal too
  bool styled_;
  LLMEngine engine_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> template_;
  PromptReader reader_;
  Conversation conversation_;
  bool failed_ = false, left_ = false;
  bool stopped_ = false;  // Ctrl-C has stopped the latest answer
};

int Chat::run() {
  LineReader lines(interactive_);
  if (interactive_ && !options_.quiet) {
    const EngineSetup& setup = engine_.setup();
    std::filesystem::path folder(hub::shown_name(options_.model));
    if (!folder.has_filename()) folder = folder.parent_path();  // a slash at the end
    note(fmt::format("{}, {} tokens of context, {} on {}. /help lists the commands.",
                     folder.filename().string(), context(), dtype_name(setup.dtype),
                     setup.config.device));
  }
  while (!left_) {
    const Input input = lines.read(stopped_);
    if (input.kind == Input::Kind::kInterrupt) return 128 + SIGINT;
    if (input.kind == Input::Kind::kEnd) break;
    stopped_ = false;
    hear(input.text);
    if (stopped_ && !interactive_) return InterruptGuard::exit_status();
  }
  return failed_ && !interactive_ ? kExitUserError : kExitOk;
}

// -- Commands

std::span<const Chat::Command> Chat::commands() {
  static constexpr std::array<Command, 9> kCommands = {{
      {"/reset", "", "begin a new conversation with the same system message", &Chat::reset},
      {"/system", "TEXT", "the same with this system message, or with none", &Chat::set_system},
      {"/regenerate", "", "answer the last message again", &Chat::regenerate},
      {"/save", "FILE", "write the conversation as JSON", &Chat::save},
      {"/load", "FILE", "continue a conversation that was saved", &Chat::load},
      {"/params", "NAME VALUE", "set a sampling parameter; without VALUE: show it, or all",
       &Chat::params},
      {"/help", "", "print this list", &Chat::show_help},
      {"/exit", "", "end the program; also /quit and Ctrl-D", &Chat::leave},
      {"/quit", "", nullptr, &Chat::leave},
  }};
  return kCommands;
}

std::string Chat::help() {
  std::string text;
  for (const Command& c : commands())
    if (c.help != nullptr)
      text += fmt::format("  {:<19} {}\n", fmt::format("{} {}", c.name, c.argument), c.help);
  return text +
         "A pasted text is one message, even if it has several lines. Alt-Enter begins a\n"
         "line, and so does Enter between \"\"\" and \"\"\". Ctrl-C stops an answer or clears\n"
         "the text; a second Ctrl-C ends the program.\n";
}

/// Does what the user has entered.
void Chat::hear(const std::string& text) {
  static constexpr const char* kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string::npos) return;
  try {
    if (const auto block = block_in(text)) return say(*block);
    const size_t name_end = std::min(text.find_first_of(kSpace, first), text.size());
    const std::string name = text.substr(first, name_end - first);
    const auto is_named = [&](const Command& c) { return name == c.name; };
    const auto found = std::ranges::find_if(commands(), is_named);
    const size_t last = text.find_last_not_of(kSpace) + 1;
    const size_t begin = std::min(text.find_first_not_of(kSpace, name_end), last);
    const std::string argument = text.substr(begin, last - begin);
    // A pasted text may begin with the word of a command.
    const bool is_message = argument.find('\n') != std::string::npos && name != "/system";
    if (found != commands().end() && !is_message) {
      require(argument.empty() || *found->argument != '\0', "nothing may follow {}", name);
      (this->*found->run)(argument);
    } else if (name[0] == '/' && text.find('\n') == std::string::npos) {
      std::vector<std::string> names;
      for (const Command& c : commands()) names.emplace_back(c.name);
      fail("'{}' is not a command{} /help lists them", name,
           nearest_name(name, names).empty() ? ";" : did_you_mean(name, names));
    } else {
      say(interactive_ ? text.substr(0, text.find_last_not_of('\n') + 1) : text);
    }
  } catch (const UserError& e) {
    failed_ = true;
    print_error(e.what());
  }
}

void Chat::reset(const std::string&) { conversation_.begin(conversation_.system()); }
void Chat::set_system(const std::string& text) {
  require_utf8(text, "the message");
  conversation_.begin(text);
}

void Chat::regenerate(const std::string&) {
  Json messages = conversation_.messages();
  if (!messages.empty() && messages.back()["role"] == "assistant")
    messages.erase(messages.size() - 1);
  require(!messages.empty() && messages.back()["role"] == "user", "there is nothing to answer yet");
  ask(std::move(messages));
}

void Chat::save(const std::string& file) {
  require(!file.empty(), "/save needs the name of a file");
  conversation_.save(expand_home(file));
  note(fmt::format("saved {} messages", conversation_.messages().size()));
}

void Chat::load(const std::string& file) {
  require(!file.empty(), "/load needs the name of a file");
  conversation_.load(expand_home(file));
  const Prompt prompt = reader_.from_messages(conversation_.messages());
  note(fmt::format("loaded {} messages", conversation_.messages().size()));
  if (prompt.error.empty()) note_context(static_cast<int64_t>(prompt.token_ids.size()));
}

void Chat::params(const std::string& argument) {
  const size_t name_end = std::min(argument.find_first_of(" ="), argument.size());
  const std::string name = argument.substr(0, name_end);
  const size_t value = argument.find_first_not_of(" =", name_end);
  if (value == std::string::npos) print_out(describe(reader_.defaults, name));
  else reader_.defaults = changed(reader_.defaults, name, argument.substr(value));
}

void Chat::show_help(const std::string&) { print_out(help()); }
void Chat::leave(const std::string&) { left_ = true; }

// -- Answers

void Chat::say(const std::string& text) {
  require_utf8(text, "the message");
  Json messages = conversation_.messages();
  messages.push_back(message_of("user", text));
  ask(std::move(messages));
}

/// Answers the last of `messages`. Then the conversation becomes these messages and the answer;
/// without an answer it stays as it was.
void Chat::ask(Json messages) {
  const InterruptGuard guard;
  Prompt prompt = reader_.from_messages(messages);
  require(prompt.error.empty(), "{}", prompt.error);
  const auto length = static_cast<int64_t>(prompt.token_ids.size());
  require(length < context(), "the conversation has {} tokens and the context {}: {}", length,
          context(), remedy());
  const RequestOutput output = answer(prompt);
  stopped_ = InterruptGuard::interrupted();
  if (!stopped_ || !output.text.empty()) {
    messages.push_back(message_of("assistant", output.text));
    conversation_.set_messages(std::move(messages));
  }
  require(output.error.empty(), "{}", output.error);
  if (terminal_) {
    const bool is_cut = output.finish_reason == "length";
    std::string figures = is_cut ? "[cut by length]" : "";
    if (!options_.quiet && !output.token_ids.empty())
      figures += (is_cut ? " " : "") + speed_of(output);
    if (!figures.empty()) note(figures);
    note_context(length + static_cast<int64_t>(output.token_ids.size()));
  }
}

/// Generates the answer and prints it as it grows.
RequestOutput Chat::answer(const Prompt& prompt) {
  const size_t end = prompt.text.find_last_not_of(" \n");
  Thoughts thoughts(std::string_view(prompt.text).substr(0, end + 1).ends_with("<think>"));
  const uint64_t id = engine_.add(request_of(*engine_.request_factory(), prompt));
  RequestOutput output;
  bool has_text = false;
  for (bool aborted = false; !engine_.is_finished();) {
    if (InterruptGuard::interrupted() && !aborted) aborted = engine_.abort(id);
    for (RequestUpdate& update : engine_.step()) {
      has_text = has_text || !update.text.empty();
      if (styled_ && !update.text.empty())
        print_styled(thoughts.show(escape_controls(update.text, /*keep_lines=*/true)));
      else if (!update.text.empty()) print_out(update.text);
      if (update.finished) output = std::move(*update.finished);
    }
  }
  if (styled_) print_styled(thoughts.finish());
  if (has_text || output.error.empty()) print_out("\n");
  return output;
}

/// A sentence about what the user can do when the context is full.
std::string Chat::remedy() const {
  const int64_t most = engine_.setup().model.max_position_embeddings;
  return "/reset or /system begins a new conversation" +
         (context() < most ? fmt::format("; --max-model-len {} allows a longer one", most) : "");
}

/// Prints a note if little of the context is left.
void Chat::note_context(int64_t num_used) const {
  const int64_t num_left = context() - num_used;
  if (num_left <= 0) note(fmt::format("The context of {} tokens is full: {}", context(), remedy()));
  else if (num_left < context() / 8)
    note(fmt::format("{} of the context's {} tokens are left: {}", num_left, context(), remedy()));
}

/// Prints a line that is not part of the conversation, only on a terminal.
void Chat::note(const std::string& text) const {
  if (!terminal_) return;
  const std::string line = escape_controls(text);
  if (styled_) print_styled(dimmed(line) + "\n");
  else print_out(line + "\n");
}

}  // namespace

void add_chat(Command program) {
  Command sub = program.add_command("chat", "Talk to a model in the terminal");
  auto options = std::make_shared<ChatOptions>();
  add_model_argument(sub, options->model);
  sub.add_value("--system", options->system, "The system message")
      .type_name("TEXT")
      .check(utf8_text());
  sub.add_flag("--no-thinking", options->no_thinking,
               "Ask the chat template for answers without thinking");
  sub.add_flag("--quiet", options->quiet, "Print neither the model's name nor tokens per second");
  options->sampling.add_to(sub);
  SamplingParams::for_each_field([&](const FieldInfo& field, auto) {
    if (field.option.empty()) return;
    const std::string name(field.flag());
    if (!is_for_chat(field)) sub.remove_option(name);
    else if (field.generation_config != nullptr)  // the checkpoint's value is the default
      sub.option(name).default_text("");
  });
  add_engine_options(sub, options->config);
  sub.remove_option("--logprobs-mode");
  sub.footer(std::string(R"(Examples:
  nanovllm chat models/tiny-tales
  nanovllm chat Qwen/Qwen3-0.6B --no-thinking --temperature 0.7
  printf 'Hello\nTell me more\n' | nanovllm chat models/tiny-tales

Sampling options have precedence over the checkpoint's generation_config.json. If neither limits
an answer, it may be as long as the context allows. A terminal shows thoughts dimmed, unless the
environment variable NO_COLOR is set. What you enter is kept in
$XDG_STATE_HOME/nanovllm/history, or ~/.local/state/nanovllm/history.

Commands in the conversation:
)") + Chat::help() +
             kExitStatusHelp);
  sub.action([options, sub] {
    options->sampling.find_given(sub);
    return Chat(*options, options->sampling.for_chat(options->model)).run();
  });
}

}  // namespace nanovllm
