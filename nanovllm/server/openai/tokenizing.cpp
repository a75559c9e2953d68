#include "nanovllm/server/openai/tokenizing.h"

#include "nanovllm/base/json.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/params/sampling_json.h"
#include "nanovllm/server/conversation/conversation.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/limits.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/request_fields.h"

namespace nanovllm::server {

namespace {

/// The body of a request to tokenize or detokenize, which may name the model.
Json read_body(const Serving& serving, const std::string& text) {
  Json body = parse_json(text, "the body", kMaxConversationBytes);
  check_is_object(body);
  serving.name_of(name_field(body, "model"));
  return body;
}

}  // namespace

std::string tokenize_response(const Serving& serving, const std::string& body_text,
                              const std::stop_token& stop) {
  const Json body = read_body(serving, body_text);
  if (bool_field(body, "return_token_strs", false))
    refuse_field("return_token_strs", "true is not supported");
  std::vector<int32_t> ids;
  if (body.contains("messages")) {
    ChatRequest request = chat_request(body, serving.defaults);
    ids = read_conversation(serving, request, stop).prompt;
  } else {
    const auto prompt = body.find("prompt");
    if (prompt == body.end() || !prompt->is_string())
      throw ApiError(400, "prompt must be a text", "prompt");
    ids = serving.encode(prompt->get<std::string>(), bool_field(body, "add_special_tokens", true),
                         name_field(body, "cache_salt"), stop);
  }
  const Json answer = {{"count", ids.size()},
                       {"max_model_len", serving.setup.config.max_model_len},
                       {"tokens", ids}};
  return dump_json(answer);
}

std::string detokenize_response(const Serving& serving, const std::string& body_text,
                                const std::stop_token& /*stop*/) {
  const Json body = read_body(serving, body_text);
  const Json* tokens = find_field(body, "tokens");
  if (tokens == nullptr) refuse_field("tokens", "is missing");
  const std::vector<int32_t> ids =
      naming_field([&] { return token_ids_from_json(*tokens, "tokens"); });
  const int64_t vocab_size = serving.setup.model.vocab_size;
  for (const int32_t id : ids)
    if (id >= vocab_size)
      refuse_field("tokens", "contains {}; the vocabulary has {} ids, 0 to {}", id, vocab_size,
                   vocab_size - 1);
  const Json answer = {{"prompt", serving.tokenizer().decode(ids, false)}};
  return dump_json(answer);
}

std::string describe_tokenizer(const std::string& folder, const std::string& template_file) {
  const std::string path = folder + "/tokenizer_config.json";
  const auto text = read_file_if_there(path, kMaxTokenizerConfigBytes);
  Json info = text ? parse_json(*text, path) : Json::object();
  info.emplace("tokenizer_class", "PreTrainedTokenizerFast");
  const std::string file = template_file.empty() ? folder + "/chat_template.jinja" : template_file;
  if (const auto source = read_file_if_there(file, kMaxTemplateBytes))
    info["chat_template"] = *source;
  return dump_json(info);
}

}  // namespace nanovllm::server
