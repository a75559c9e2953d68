// tokenize, detokenize and render: filters from stdin to stdout, line by line.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <filesystem>
#include <functional>
#include <memory>
#include <tuple>

#include "apps/cli/model_argument.h"
#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/hub/hub.h"
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

/// Filters all lines of stdin. Invalid lines become {"error"} with --json, and else a line on
/// stderr. Returns the number of invalid lines.
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
    if (!options.json) {
      require_utf8(line, "");
      return fmt::format("{}", fmt::join(tokenizer->encode(line, options.special_tokens), " "));
    }
    const Json json = object_of(line);
    require(json.contains("text") && json["text"].is_string(), "the line needs a text in 'text'");
    return dump_json({{"ids", tokenizer->encode(json["text"].string(), options.special_tokens)}});
  };
  return run_filter(filter, options.json) == 0 ? kExitOk : kExitUserError;
}

/// Reads token ids of one vocabulary.
class IdReader {
 public:
  explicit IdReader(const Tokenizer& tokenizer) : vocab_size_(tokenizer.vocab_size()) {}

  std::vector<int32_t> from_text(const std::string& line) const {
    std::vector<int32_t> ids;
    constexpr const char* kSeparators = " ,\t\r[]";
    for (size_t at = 0; (at = line.find_first_not_of(kSeparators, at)) != std::string::npos;) {
      const size_t end = std::min(line.find_first_of(kSeparators, at), line.size());
      int64_t id = -1;
      const auto [stop, error] = std::from_chars(line.data() + at, line.data() + end, id);
      const std::string word = line.substr(at, end - at);
      require(stop == line.data() + end && error != std::errc::invalid_argument,
              "'{}' is not a token id", word);
      ids.push_back(in_range(error == std::errc() ? id : -1, word));
      at = end;
    }
    return ids;
  }

  std::vector<int32_t> from_json(const Json& list) const {
    require(list.is_array(), "ids must be a list of token ids");
    std::vector<int32_t> ids;
    for (const Json& item : list) {
      require(item.is_number_integer(), "{} in ids is not a token id", printable(item));
      const bool fits = !item.is_number_unsigned() || item.get<uint64_t>() <= INT64_MAX;
      ids.push_back(in_range(fits ? item.get<int64_t>() : -1, printable(item)));
    }
    return ids;
  }

 private:
  int32_t in_range(int64_t id, const std::string& written) const {
    require(id >= 0 && id < vocab_size_, "{} is not a token id; the vocabulary has {} ids, 0 to {}",
            written, vocab_size_, vocab_size_ - 1);
    return static_cast<int32_t>(id);
  }

  int64_t vocab_size_;
};

int detokenize(const TextOptions& options) {
  const auto tokenizer = load_tokenizer(options.model);
  const IdReader reader(*tokenizer);
  const Filter filter = [&](const std::string& line) {
    if (!options.json) return tokenizer->decode(reader.from_text(line), options.special_tokens);
    const Json json = object_of(line);
    require(json.contains("ids"), "the line needs a list in 'ids'");
    return dump_json(
        {{"text", tokenizer->decode(reader.from_json(json["ids"]), options.special_tokens)}});
  };
  return run_filter(filter, options.json) == 0 ? kExitOk : kExitUserError;
}

int render(const TextOptions& options) {
  std::optional<ChatTemplate> chat_template;
  std::string error;
  if (is_folder(options.model)) {
    chat_template = ChatTemplate::load(options.model);
    require(chat_template.has_value(),
            "{}: no chat_template.jinja, and none in tokenizer_config.json{}", options.model,
            hub::pull_hint(options.model));
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
  int64_t num_template_errors = 0;  // counts a line until it is rendered
  const Filter filter = [&](const std::string& line) {
    const Json context = object_of(line);
    ++num_template_errors;
    require(chat_template.has_value(), "{}", error);
    const std::string prompt = chat_template->render(context);
    --num_template_errors;
    return options.json ? dump_json({{"prompt", prompt}}) : prompt;
  };
  return run_filter(filter, options.json) == num_template_errors ? kExitOk : kExitUserError;
}

}  // namespace

void add_text_commands(Command program) {
  const auto add = [&](const char* name, const char* description, int (*run)(const TextOptions&)) {
    Command sub = program.add_command(name, description);
    auto options = std::make_shared<TextOptions>();
    add_model_argument(sub, options->model)
        .description("Folder with tokenizer.json, or a Hugging Face id (ORG/NAME[@REVISION])");
    sub.add_flag("--local-files-only", "Download nothing");
    sub.add_flag("--json", options->json, "Read and print JSON lines");
    sub.action([options, run] { return run(*options); });
    return std::pair(sub, options);
  };
  constexpr const char* kStatus =
      "\nExit status: 0 if all is done; 2 if MODEL or a line was refused; 130 after Ctrl-C; 143 "
      "after SIGTERM; 1 for any other failure.";

  auto [sub, options] = add("tokenize", "Turn lines of text into token ids", tokenize);
  sub.add_flag(
      "--no-special-tokens", [options = options.get()] { options->special_tokens = false; },
      "Do not add the tokenizer's special tokens, such as a begin token");
  sub.footer(std::string(R"(Examples:
  echo 'Once upon a time' | nanovllm tokenize models/tiny-tales
  echo '{"text": "two\nlines"}' | nanovllm tokenize models/tiny-tales --json

It reads stdin line by line. With --json, a line {"text": ...} becomes {"ids": [...]} or
{"error": ...}. Text must be UTF-8; other lines are refused.
)") + kStatus);

  std::tie(sub, options) = add("detokenize", "Turn lines of token ids into text", detokenize);
  sub.add_flag(
      "--keep-special-tokens", [options = options.get()] { options->special_tokens = false; },
      "Keep special tokens in the text");
  sub.footer(std::string(R"(Examples:
  echo '327 1874 308' | nanovllm detokenize models/tiny-tales
  echo Hello | nanovllm tokenize models/tiny-tales |
    nanovllm detokenize models/tiny-tales

It reads stdin line by line. The ids of a line are separated by spaces or commas. With --json, a
line {"ids": [...]} becomes {"text": ...} or {"error": ...}. Ids that the vocabulary does not have
are refused.
)") + kStatus);

  std::tie(sub, options) =
      add("render", "Turn conversations into prompts with a chat template", render);
  sub.option("MODEL")
      .description("Checkpoint folder, Hugging Face id, or the file of a template")
      .type_name("FILE");
  sub.footer(std::string(R"(Examples:
  echo '{"messages": [{"role": "user", "content": "Hi"}]}' |
    nanovllm render models/tiny-tales
  nanovllm render chat_template.jinja --json < conversations.jsonl

It reads stdin line by line. A line is {"messages": [...], "tools"?, "add_generation_prompt"?,
...variables}. With --json, it becomes {"prompt": ...} or {"error": ...}. An error of the template
is the result of its line and does not change the exit status.
)") + kStatus);
}

}  // namespace nanovllm
