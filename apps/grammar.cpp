// grammar check: tests forms of answers, token by token as an engine would.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "apps/cli/model_argument.h"
#include "commands.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/text/grammar/compile.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "terminal.h"

namespace nanovllm {

namespace {

struct GrammarOptions {
  std::string model, rows;
  bool json = false;
};

StructuredOutputs form_of(const Json& row) {
  require(
      row.is_object() && row.contains("kind") && row["kind"].is_string() && row.contains("spec"),
      "the line must be an object {{\"kind\", \"spec\", \"text\"}}");
  const std::string& kind = row["kind"].string();
  const Json& spec = row["spec"];
  const auto text = [&] {
    require(spec.is_string(), "the spec of a {} must be a text", kind);
    return spec.string();
  };
  StructuredOutputs form;
  if (kind == "json_schema") form.json = spec.is_string() ? spec.string() : dump_json(spec);
  else if (kind == "structural_tag")
    form.structural_tag = spec.is_string() ? spec.string() : dump_json(spec);
  else if (kind == "regex") form.regex = text();
  else if (kind == "grammar") form.grammar = text();
  else if (kind == "choice") {
    require(spec.is_array() && std::ranges::all_of(spec, &Json::is_string),
            "the spec of a choice must be a list of texts");
    form.choice = spec.get<std::vector<std::string>>();
    require(!form.choice.empty(), "a choice needs at least one text");
  } else {
    require(false, "the kind '{}' is none of json_schema, regex, grammar, choice, structural_tag",
            kind);
  }
  return form;
}

/// Checks the rows of a file. Rows with the same form that follow each other are one compilation.
class Checker {
 public:
  explicit Checker(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    std::vector<int32_t> end_ids;
    if (const auto eos = tokenizer.eos_token_id()) end_ids.push_back(*eos);
    trie_ = grammar::make_trie(tokenizer.token_texts(), end_ids, tokenizer.vocab_size());
    mask_.resize((trie_->num_tokens() + 31) / 32);
  }

  Json check(const Json& row) {
    const StructuredOutputs form = form_of(row);
    require(row.contains("text") && row["text"].is_string(), "the line needs a text in 'text'");
    if (!is_compiled_ || form != form_) {
      is_compiled_ = true;
      form_ = form;
      grammar_ = nullptr;
      error_.clear();
      const double begin = steady_seconds();
      try {
        grammar_ = grammar::compile(form, trie_, "spec");
      } catch (const UserError& e) {
        error_ = e.what();
      }
      compile_us_ = (steady_seconds() - begin) * 1e6;
      if (grammar_ != nullptr) all_compile_us.push_back(compile_us_);
    }
    require(grammar_ != nullptr, "{}", error_);
    const std::vector<int32_t> ids = tokenizer_.encode(row["text"].string(), false);
    grammar::Matcher matcher(grammar_);
    double mask_us = 0, longest_us = 0;
    int64_t num_masks = 0;
    bool accepted = true;
    for (const int32_t id : ids) {
      const double begin = steady_seconds();
      matcher.fill(mask_);
      const double us = (steady_seconds() - begin) * 1e6;
      all_mask_us.push_back(us);
      mask_us += us;
      longest_us = std::max(longest_us, us);
      ++num_masks;
      const auto bit = static_cast<uint32_t>(id);
      accepted = (static_cast<uint32_t>(mask_[bit / 32]) >> (bit % 32) & 1) != 0;
      if (!accepted) break;
      matcher.accept(id);
    }
    accepted = accepted && matcher.may_end();
    return {{"accepted", accepted},
            {"tokens", ids.size()},
            {"mask_us", mask_us / static_cast<double>(std::max<int64_t>(num_masks, 1))},
            {"longest_mask_us", longest_us},
            {"compile_us", compile_us_}};
  }

  std::vector<double> all_mask_us, all_compile_us;

 private:
  const Tokenizer& tokenizer_;
  std::shared_ptr<const grammar::TokenTrie> trie_;
  bool is_compiled_ = false;
  StructuredOutputs form_;
  std::string error_;
  std::shared_ptr<grammar::Grammar> grammar_;  // null: error_ says why
  std::vector<int32_t> mask_;
  double compile_us_ = 0;
};

double at_share(std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  std::ranges::sort(sorted);
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

using File = std::unique_ptr<FILE, int (*)(FILE*)>;

File open_rows(const std::string& path) {
  File file = path == "-" ? File(stdin, [](FILE*) { return 0; })
                          : File(std::fopen(path.c_str(), "rbe"), std::fclose);
  require(file != nullptr, "{}: {}", path, std::strerror(errno));
  return file;
}

int show_rows(const GrammarOptions& options) {
  const File file = open_rows(options.rows);
  int status = kExitOk;
  while (const auto line = read_line(file.get(), options.rows)) {
    try {
      print_out(grammar::show(form_of(parse_json(*line, "the line")), "spec"));
    } catch (const UserError& e) {
      print_error(e.what());
      status = kExitUserError;
    }
  }
  return status;
}

int check_rows(const GrammarOptions& options) {
  require_model_folder(options.model);
  const auto tokenizer = Tokenizer::load(options.model);
  Checker checker(*tokenizer);
  const File file = open_rows(options.rows);
  int64_t index = 0, num_accepted = 0, num_refused = 0;
  for (; const auto line = read_line(file.get(), options.rows); ++index) {
    Json result = {{"index", index}};
    try {
      result.update(checker.check(parse_json(*line, "the line")));
      num_accepted += result["accepted"].get<bool>() ? 1 : 0;
    } catch (const UserError& e) {
      ++num_refused;
      result["error"] = e.what();
    }
    if (options.json) print_out(dump_json(result) + "\n");
    else if (result.contains("error"))
      print_out(fmt::format("{}: error: {}\n", index, result["error"].string()));
    else
      print_out(fmt::format("{}: {}\n", index,
                            result["accepted"].get<bool>() ? "accepted" : "not accepted"));
  }
  if (options.json) return kExitOk;
  std::vector<double>& masks = checker.all_mask_us;
  double sum = 0;
  for (const double us : masks) sum += us;
  print_out(
      fmt::format("{} rows: {} accepted, {} not accepted, {} with an error\n"
                  "{} masks: mean {:.1f} us, p50 {:.1f} us, p99 {:.1f} us, longest {:.1f} us\n",
                  index, num_accepted, index - num_accepted - num_refused, num_refused,
                  masks.size(), masks.empty() ? 0 : sum / static_cast<double>(masks.size()),
                  at_share(masks, 0.5), at_share(masks, 0.99), at_share(masks, 1)));
  std::vector<double>& compiles = checker.all_compile_us;
  print_out(fmt::format("{} compilations: p50 {:.0f} us, p99 {:.0f} us, longest {:.0f} us\n",
                        compiles.size(), at_share(compiles, 0.5), at_share(compiles, 0.99),
                        at_share(compiles, 1)));
  return kExitOk;
}

}  // namespace

void add_grammar(Command program) {
  Command grammar =
      program.add_command("grammar", "Test JSON schemas, regular expressions and grammars");
  grammar.require_command();
  grammar.footer(
      "Examples:\n"
      "  nanovllm grammar check models/tiny-tales --rows rows.jsonl\n"
      "  nanovllm grammar show --rows rows.jsonl\n"
      "\n'nanovllm grammar COMMAND --help' describes a command, with examples.\n"
      "\nExit status: 0 if all is done; 2 if MODEL or FILE was refused.");
  Command sub = grammar.add_command("check", "Test whether texts have a form, token by token");
  auto options = std::make_shared<GrammarOptions>();
  add_model_argument(sub, options->model)
      .description("Folder with tokenizer.json, or a Hugging Face id (ORG/NAME[@REVISION])");
  sub.add_file("--rows", options->rows, "JSON lines, see below; - for stdin");
  sub.add_flag("--json", options->json, "Print JSON lines");
  sub.add_flag("--local-files-only", "Download nothing");
  sub.footer(R"(Examples:
  echo '{"kind": "regex", "spec": "[0-9]+", "text": "42"}' |
    nanovllm grammar check models/tiny-tales --rows -

A line is {"kind", "spec", "text"}. The kind is json_schema, regex, grammar, choice or
structural_tag. The tokens of the text are accepted one after the other if the mask of the form
allows them; the text is accepted if the end token may follow.

Exit status: 0 if all rows were tested, also if a form was refused; 2 if MODEL or FILE was
refused; 130 after Ctrl-C; 143 after SIGTERM; 1 for any other failure.)");
  sub.action([options] {
    require(!options->rows.empty(), "grammar check needs --rows FILE");
    return check_rows(*options);
  });

  sub = grammar.add_command("show", "Print what forms are compiled to");
  auto shown = std::make_shared<GrammarOptions>();
  shown->rows = "-";
  sub.add_file("--rows", shown->rows, "JSON lines {\"kind\", \"spec\"}; by default stdin");
  sub.footer(R"(Examples:
  echo '{"kind": "regex", "spec": "(yes|no)+"}' | nanovllm grammar show
  echo '{"kind": "json_schema", "spec": {"type": "integer"}}' |
    nanovllm grammar show

It prints the language in bytes: "texts", [sets], sequences, a | b, x{2,5}, a & b (both), !a (all
others) and <rules>. docs/structured.md explains what becomes of it.

Exit status: 0 if all is done; 2 if FILE or a form was refused; 130 after Ctrl-C; 143 after
SIGTERM; 1 for any other failure.)");
  sub.action([shown] { return show_rows(*shown); });
}

}  // namespace nanovllm
