// tokenize, detokenize and render: filters from stdin to stdout, line by line.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <functional>
#include <memory>

#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/sampling_json.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/chat_template.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct TextOptions {
  std::string model;
  bool special_tokens = true;  // tokenize adds them; detokenize leaves them out
  bool json = false;
};

/// Turns one input line into one output line (or text). Throws UserError for an invalid line.
using Filter = std::function<std::string(const std::string& line)>;

/// Invalid lines become {"error"} with --json, and else a line on stderr. Returns their number.
int64_t run_filter(const Filter& filter, bool json) {
  int64_t num_bad = 0, number = 0;
  while (const auto line = read_line(stdin, "stdin")) {
    ++number;
    try {
      print_out(filter(*line) + "\n");
    } catch (const UserError& e) {
      ++num_bad;
      if (json) print_out(dump_json({{"error", e.what()}}) + "\n");
      else print_error(fmt::format("line {}: {}", number, e.what()));
    }
  }
  return num_bad;
}

Json object_of(const std::string& line) {
  Json json = parse_json(line, "the line");
  require(json.is_object(), "the line must be a JSON object");
  return json;
}

std::unique_ptr<const Tokenizer> load_tokenizer(const std::string& folder) {
  require_model_folder(folder);
  return Tokenizer::load(folder);
}

int tokenize(const TextOptions& options) {
  const auto tokenizer = load_tokenizer(options.model);
  const Filter filter = [&](const std::string& line) {
    if (!options.json)
      return fmt::format("{}", fmt::join(tokenizer->encode(line, options.special_tokens), " "));
    const Json json = object_of(line);
    require(json.contains("text") && json["text"].is_string(), "the line needs a text in 'text'");
    return dump_json({{"ids", tokenizer->encode(json["text"].get_ref<const std::string&>(),
                                                options.special_tokens)}});
  };
  return run_filter(filter, options.json) == 0 ? kExitOk : kExitUserError;
}

std::vector<int32_t> ids_of(const std::string& line) {
  std::vector<int32_t> ids;
  constexpr const char* kSeparators = " ,\t\r[]";
  for (size_t at = 0; (at = line.find_first_not_of(kSeparators, at)) != std::string::npos;) {
    const size_t end = std::min(line.find_first_of(kSeparators, at), line.size());
    int32_t id = -1;
    const auto [stop, error] = std::from_chars(line.data() + at, line.data() + end, id);
    require(error == std::errc() && stop == line.data() + end && id >= 0, "'{}' is not a token id",
            line.substr(at, end - at));
    ids.push_back(id);
    at = end;
  }
  return ids;
}

int detokenize(const TextOptions& options) {
  const auto tokenizer = load_tokenizer(options.model);
  const Filter filter = [&](const std::string& line) {
    if (!options.json) return tokenizer->decode(ids_of(line), options.special_tokens);
    const Json json = object_of(line);
    require(json.contains("ids"), "the line needs a list in 'ids'");
    return dump_json({{"text", tokenizer->decode(token_ids_from_json(json["ids"], "ids"),
                                                 options.special_tokens)}});
  };
  return run_filter(filter, options.json) == 0 ? kExitOk : kExitUserError;
}

int render(const TextOptions& options) {
  std::optional<ChatTemplate> chat_template;
  std::string error;
  if (is_folder(options.model)) {
    chat_template = ChatTemplate::load(options.model);
    require(chat_template.has_value(),
            "{}: no chat_template.jinja, and none in tokenizer_config.json", options.model);
  } else {
    if (!path_exists(options.model)) require_model_folder(options.model);
    const std::string source = read_file(options.model, kMaxTemplateBytes);
    try {
      chat_template.emplace(source, Json::object(),
                            std::filesystem::path(options.model).filename());
    } catch (const UserError& e) {
      error = e.what();  // reported for each line, like other errors of a template
    }
  }
  const Filter filter = [&](const std::string& line) {
    Json context = parse_json(line, "the line");
    require(context.is_object(), "the line must be a JSON object");
    require(chat_template.has_value(), "{}", error);
    const std::string prompt = chat_template->render(context);
    return options.json ? dump_json({{"prompt", prompt}}) : prompt;
  };
  run_filter(filter, options.json);
  return kExitOk;
}

}  // namespace

void add_text_commands(CLI::App& app, Command& command) {
  const auto add = [&](const char* name, const char* description, const char* model,
                       int (*run)(const TextOptions&), const char* footer) {
    CLI::App* sub = app.add_subcommand(name, description);
    auto options = std::make_shared<TextOptions>();
    sub->add_option("MODEL", options->model, model)->required();
    sub->add_flag("--json", options->json, "Read and print JSON lines");
    sub->footer(footer);
    sub->callback([&command, options, run] { command = [options, run] { return run(*options); }; });
    return std::pair(sub, options);
  };
  const char* folder = "Folder with tokenizer.json";
  const auto [tokenize_command, tokenize_options] =
      add("tokenize", "Turn lines of text into token ids", folder, tokenize,
          "With --json a line {\"text\": ...} becomes {\"ids\": [...]} or {\"error\": ...}.\n"
          "Examples:\n"
          "  echo 'Once upon a time' | nanovllm tokenize models/tiny-tales\n"
          "  echo '{\"text\": \"two\\nlines\"}' | nanovllm tokenize models/tiny-tales --json\n"
          "Exit status: 0 if all is done; 2 if MODEL or a line could not be read.");
  tokenize_command->add_flag_callback(
      "--no-special-tokens",
      [options = tokenize_options.get()] { options->special_tokens = false; },
      "Do not add the special tokens of the tokenizer, such as a begin token");
  const auto [detokenize_command, detokenize_options] = add(
      "detokenize", "Turn lines of token ids into text", folder, detokenize,
      "The ids of a line are separated by spaces or commas. With --json a line {\"ids\": [...]}\n"
      "becomes {\"text\": ...} or {\"error\": ...}. Special tokens are left out by default.\n"
      "Examples:\n"
      "  echo '327 1874 308' | nanovllm detokenize models/tiny-tales\n"
      "  echo Hello | nanovllm tokenize models/tiny-tales | nanovllm detokenize "
      "models/tiny-tales\n"
      "Exit status: 0 if all is done; 2 if MODEL or a line could not be read.");
  detokenize_command->add_flag_callback(
      "--keep-special-tokens",
      [options = detokenize_options.get()] { options->special_tokens = false; },
      "Show special tokens in the text");
  add("render", "Turn conversations into prompts with a chat template",
      "Checkpoint folder, or the file of a template", render,
      "A line is {\"messages\": [...], \"tools\"?, \"add_generation_prompt\"?, ...variables}. An\n"
      "error of the template is the result of its line and does not change the exit status.\n"
      "Examples:\n"
      "  echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], "
      "\"add_generation_prompt\": "
      "true}' |\n"
      "    nanovllm render models/tiny-tales\n"
      "  nanovllm render chat_template.jinja --json < conversations.jsonl\n"
      "Exit status: 0 if all is done; 2 if MODEL could not be read.");
}

}  // namespace nanovllm
