#include "apps/batch/openai_batch.h"

#include <charconv>
#include <stop_token>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/engine/request_factory.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/http/json_text.h"
#include "nanovllm/server/openai/writers.h"

namespace nanovllm {

namespace {

using server::ApiError;

constexpr std::string_view kId = "batch_req_";
constexpr std::string_view kChat = "/v1/chat/completions", kCompletions = "/v1/completions";

/// The route that a line names or, if it names none, for which its body is.
std::string_view route_of(const Json& line) {
  const Json url = line.value("url", Json());
  if (url.is_null()) return line["body"].contains("messages") ? kChat : kCompletions;
  for (const std::string_view route : {kChat, kCompletions})
    if (url == route) return route;
  fail("url is {}; it must be \"{}\" or \"{}\"", printable(url), kChat, kCompletions);
}

uint64_t hash_of_tokens(int64_t prompt_tokens) { return hash_of(std::to_string(prompt_tokens)); }

uint64_t hash_of_custom_id(const Json& custom_id) { return hash_of(dump_json(custom_id)); }

HeldResult read_result(const Json& result) {
  const auto& id = result.at("id").string();
  require(id.starts_with(kId), "the id is another one");
  HeldResult held;
  const char* const end = id.data() + id.size();
  const auto [stop, error] = std::from_chars(id.data() + kId.size(), end, held.index);
  require(error == std::errc() && stop == end && held.index >= 0, "the id is another one");
  held.key.fields = hash_of_custom_id(result.at("custom_id"));
  held.outcome = Outcome::kRefused;
  const Json& response = result.at("response");
  if (response.is_null()) {
    require(result.at("error").is_object(), "there is no error");
    return held;
  }
  constexpr int kOk = 200, kServerError = 500;
  const int status = response.at("status_code").get<int>();
  if (status >= kServerError) held.outcome = Outcome::kFailed;
  if (status != kOk) return held;
  held.outcome = Outcome::kAnswered;
  held.key.prompt =
      hash_of_tokens(response.at("body").at("usage").at("prompt_tokens").get<int64_t>());
  return held;
}

void refuse(BatchRequest& request, const ApiError& error) {
  request.generation = {};
  request.status = error.status;
  request.body = error.body();
}

}  // namespace

const ResultFormat kOpenAiResults = {R"({"id":"batch_req_)", read_result};

ResultKey BatchRequest::key() const {
  ResultKey key{.fields = hash_of_custom_id(custom_id)};
  if (generation.requests.empty()) return key;
  int64_t prompt_tokens = 0;
  for (const NewRequest& made : generation.requests)
    prompt_tokens += made.choices.front()->num_prompt_tokens;
  key.prompt = hash_of_tokens(prompt_tokens);
  return key;
}

BatchRequest OpenAiBatch::read(const std::string& text, int64_t line_number) const {
  BatchRequest request;
  request.request_id = server::new_id("req-");
  try {
    const std::string where = fmt::format("line {}", line_number);
    Json line = parse_json(text, where);
    require(line.is_object(), "{}: must be a JSON object", where);
    request.custom_id = line.value("custom_id", Json());
    require(line.contains("body") && line["body"].is_object(),
            "{}: has no body that is an object, as the lines of OpenAI's batch files", where);
    prepare(std::move(line), request);
  } catch (const UserError& e) {
    request.generation = {};
    request.status = 0;
    request.body = e.what();
  }
  return request;
}

/// Makes the request that a line describes. An error that a server would answer becomes the
/// response.
void OpenAiBatch::prepare(Json line, BatchRequest& request) const {
  std::string_view route;
  try {
    const Json method = line.value("method", Json("POST"));
    require(method == "POST", "method is {}; it must be \"POST\"", printable(method));
    route = route_of(line);
    Json& body = line["body"];
    for (const char* name : {"model", "stream", "stream_options"}) body.erase(name);
    if (route == kCompletions && max_tokens_ && !body.contains("max_tokens"))
      body["max_tokens"] = *max_tokens_;
    const auto read = route == kChat ? server::read_chat : server::read_completion;
    request.generation = read(serving_, dump_json(body), std::stop_token());
    request.num_left = request.generation.requests.size();
    request.outputs.resize(request.num_left);
  } catch (const ApiError& e) {
    refuse(request, e);
  } catch (const PromptTooLong& e) {
    refuse(request, ApiError::prompt_too_long(e.what(), route));
  } catch (const UserError& e) {
    constexpr int kBadRequest = 400;
    refuse(request, ApiError(kBadRequest, e.what()));
  }
}

bool OpenAiBatch::add(BatchRequest& request, size_t i, RequestOutput output) {
  if (const auto error = server::error_of(output)) {
    request.status = error->status;
    request.body = error->body();
  }
  request.outputs[i] = std::move(output);
  return --request.num_left == 0;
}

std::string OpenAiBatch::result(BatchRequest& request, int64_t index) {
  std::string to = fmt::format(R"({{"id":"{}{}","custom_id":{},"response":)", kId, index,
                               dump_json(request.custom_id));
  if (request.status == 0) {
    to += R"(null,"error":{"code":"invalid_request","message":)";
    append_json_string(to, request.body);
    return to + "}}\n";
  }
  to += fmt::format(R"({{"status_code":{},"request_id":"{}","body":)", request.status,
                    request.request_id);
  to += request.body.empty() ? request.generation.writer->whole(request.outputs) : request.body;
  return to + "},\"error\":null}\n";
}

Outcome OpenAiBatch::outcome_of(const BatchRequest& request) {
  constexpr int kOk = 200, kServerError = 500;
  if (request.status == kOk) return Outcome::kAnswered;
  return request.status >= kServerError ? Outcome::kFailed : Outcome::kRefused;
}

}  // namespace nanovllm
