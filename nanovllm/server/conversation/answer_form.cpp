#include "nanovllm/server/conversation/answer_form.h"

#include <algorithm>
#include <array>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"

namespace nanovllm::server {

namespace {

constexpr auto kThoughtTags = std::to_array<std::string_view>({"<think>", "</think>"});

/// vLLM's names of parsers for thoughts between <think> and </think>.
constexpr auto kOfThoughtTags = std::to_array<std::string_view>(
    {"qwen3", "deepseek_r1", "deepseek_v3", "glm45", "glm47", "holo2", "kimi_k2", "mimo",
     "minimax_m2", "nemotron_v3", "olmo3", "poolside_v1", "step3", "step3p5"});

}  // namespace

std::vector<std::string> tool_call_parsers() {
  std::vector<std::string> names = call_form_names();
  names.insert(names.begin(), "auto");
  return names;
}

std::vector<std::string> reasoning_parsers() {
  std::vector<std::string> names = {"auto", "none"};
  names.insert(names.end(), kOfThoughtTags.begin(), kOfThoughtTags.end());
  return names;
}

AnswerForm::AnswerForm(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
                       const std::string& call_parser, const std::string& reasoning_parser) {
  if (call_parser == "auto") {
    call_form_ =
        call_form_of_template([&](std::string_view text) { return chat_template.mentions(text); });
  } else {
    const auto form = call_form_named(call_parser);
    require(form.has_value(), "tool_call_parser '{}' is not known; it must be one of {}",
            call_parser, join(tool_call_parsers(), ", "));
    call_form_ = *form;
  }
  if (reasoning_parser == "auto") {
    splits_reasoning_ = tokenizer.token_to_id(kThoughtTags[0]).has_value();
  } else if (reasoning_parser != "none") {
    require(std::ranges::count(kOfThoughtTags, reasoning_parser) > 0,
            "reasoning_parser '{}' is not known; it must be one of {}", reasoning_parser,
            join(reasoning_parsers(), ", "));
    splits_reasoning_ = true;
  }
  const auto add = [&](std::string_view tag, bool is_of_calls) {
    const auto id = tokenizer.token_to_id(tag);
    if (id && tokenizer.is_special(*id)) special_.push_back({tag, *id, is_of_calls});
  };
  if (splits_reasoning_)
    for (const std::string_view tag : kThoughtTags) add(tag, /*is_of_calls=*/false);
  for (const std::string_view tag : special_tags(call_form_)) add(tag, /*is_of_calls=*/true);

  written_.form = call_form_;
  if (call_form_ == CallForm::kTags)
    written_.form = chat_template.mentions("<function=") ? CallForm::kXml : CallForm::kHermes;
  written_.names_first = chat_template.mentions("[ARGS]");
  // The error of a template that cannot show more, as Llama 3's.
  written_.takes_several = !chat_template.mentions("single tool-call");
  written_.opening_is_special =
      call_form_ != CallForm::kJson &&
      std::ranges::find(special_, special_tags(call_form_).front(), &Tag::text) != special_.end();
}

AnswerParser::Options AnswerForm::parsing(OfferedTools tools) const {
  return {
      .splits_reasoning = splits_reasoning_, .call_form = call_form_, .tools = std::move(tools)};
}

std::vector<int32_t> AnswerForm::show_tags(AnswerParser::Options& parsing) const {
  std::vector<int32_t> ids;
  for (const Tag& tag : special_) {
    if (tag.is_of_calls && parsing.tools.empty()) continue;
    parsing.hidden_tags.push_back(tag.text);
    ids.push_back(tag.id);
  }
  return ids;
}

}  // namespace nanovllm::server
