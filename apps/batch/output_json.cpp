#include "apps/batch/output_json.h"

#include <algorithm>
#include <array>
#include <string>

namespace nanovllm {

namespace {

/// Written for a token that cannot be drawn, because JSON has no -infinity. vLLM's server writes
/// the same number.
constexpr float kLowestLogprob = -9999;

Json to_json(const std::vector<TokenLogprobs>& tokens) {
  Json list = Json::array();
  for (const TokenLogprobs& token : tokens) {
    Json entries = Json::array();
    for (const Logprob& e : token)
      entries.push_back(
          {{"id", e.id}, {"logprob", std::max(e.logprob, kLowestLogprob)}, {"rank", e.rank}});
    list.push_back(token.empty() ? Json() : std::move(entries));
  }
  return list;
}

void add_answer(Json& json, const CompletionOutput& answer) {
  json["token_ids"] = answer.token_ids;
  json["text"] = answer.text;
  json["finish_reason"] = answer.finish_reason;
  json["stop_reason"] = Json();
  if (answer.stop_reason)
    std::visit([&](const auto& reason) { json["stop_reason"] = reason; }, *answer.stop_reason);
  if (!answer.logprobs.empty()) json["logprobs"] = to_json(answer.logprobs);
  if (!answer.error.empty()) json["error"] = answer.error;
}

// The fields of the caller's line come right after the index.
Json begin(int64_t index, const Json& passed) {
  static constexpr auto kOwn = std::to_array<std::string_view>(
      {"index", "prompt_token_ids", "token_ids", "text", "finish_reason", "stop_reason",
       "num_cached_tokens", "outputs", "usage", "error"});
  Json json = {{"index", index}};
  for (const auto& [name, value] : passed.items())
    if (std::ranges::find(kOwn, name) == kOwn.end()) json[name] = value;
  return json;
}

}  // namespace

Json to_json(const RequestOutput& output, int64_t index, const Json& passed) {
  Json json = begin(index, passed);
  json["prompt_token_ids"] = output.prompt_token_ids;
  add_answer(json, output.outputs.at(0));
  json["num_cached_tokens"] = output.num_cached_tokens;
  if (!output.prompt_logprobs.empty()) json["prompt_logprobs"] = to_json(output.prompt_logprobs);
  Json& outputs = json["outputs"] = Json::array();
  size_t num_tokens = 0;
  for (const CompletionOutput& answer : output.outputs) {
    Json one = Json::object();
    add_answer(one, answer);
    outputs.push_back(std::move(one));
    num_tokens += answer.token_ids.size();
  }
  json["usage"] = {{"prompt_tokens", output.prompt_token_ids.size()},
                   {"completion_tokens", num_tokens},
                   {"cached_tokens", output.num_cached_tokens}};
  return json;
}

Json to_json(const std::string& error, int64_t index, const Json& passed) {
  Json json = begin(index, passed);
  json["error"] = error;
  return json;
}

Outcome outcome_of(const RequestOutput& output) {
  const auto has_tokens = [](const CompletionOutput& answer) { return !answer.token_ids.empty(); };
  if (!output.has_error()) return Outcome::kAnswered;
  return std::ranges::any_of(output.outputs, has_tokens) ? Outcome::kFailed : Outcome::kRefused;
}

Outcome outcome_of(const Json& result) {
  if (!result.contains("prompt_token_ids")) return (void)result.at("error"), Outcome::kRefused;
  bool has_error = false, has_tokens = false;
  for (const Json& answer : result.at("outputs")) {
    has_error = has_error || answer.at("finish_reason") == "error";
    has_tokens = has_tokens || !answer.at("token_ids").empty();
  }
  if (!has_error) return Outcome::kAnswered;
  return has_tokens ? Outcome::kFailed : Outcome::kRefused;
}

}  // namespace nanovllm
