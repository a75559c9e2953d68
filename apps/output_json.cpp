#include "output_json.h"

namespace nanovllm {

namespace {

Json to_json(const std::vector<TokenLogprobs>& tokens) {
  Json list = Json::array();
  for (const TokenLogprobs& token : tokens) {
    Json entries = Json::array();
    for (const Logprob& e : token)
      entries.push_back({{"id", e.id}, {"logprob", e.logprob}, {"rank", e.rank}});
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

}  // namespace

Json to_json(const RequestOutput& output, int64_t index) {
  Json json = {{"index", index}, {"prompt_token_ids", output.prompt_token_ids}};
  if (output.outputs.empty()) add_answer(json, output);
  json["num_cached_tokens"] = output.num_cached_tokens;
  if (!output.prompt_logprobs.empty()) json["prompt_logprobs"] = to_json(output.prompt_logprobs);
  if (output.outputs.empty()) return json;
  json["outputs"] = Json::array();
  for (const CompletionOutput& answer : output.outputs) {
    Json one = Json::object();
    add_answer(one, answer);
    json["outputs"].push_back(std::move(one));
  }
  return json;
}

}  // namespace nanovllm
