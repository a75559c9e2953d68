#include "nanovllm/server/conversation/conversation.h"

#include <memory>
#include <string_view>
#include <utility>

#include "nanovllm/server/conversation/call_constraint.h"
#include "nanovllm/server/conversation/client_lines.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/text/parts.h"

namespace nanovllm::server {

namespace {

/// Whether an answer that the client has begun breaks off in its thoughts.
bool ends_in_thoughts(const Json& answer) {
  const Json content = answer.value("content", Json());
  if (!content.is_string()) return false;
  const auto& text = content.string();
  const size_t begin = text.rfind(kThink);
  return begin != std::string::npos && text.find(kThinkEnd, begin) == std::string::npos;
}

/// Sets the form that the request's tools give the answer. Returns whether they give one.
bool constrain_calls(const Serving& serving, const CallRules& rules, const Json& tools,
                     std::optional<StructuredOutputs>& constraint) {
  if (rules.names.empty()) return false;
  auto calls = constraint_of_calls(serving.answer_form.written_calls(), tools, rules, constraint);
  if (!calls) return false;
  constraint = std::move(calls);
  return true;
}

std::shared_ptr<const RequestParams> prepare_chat(const Serving& serving, ChatRequest& request) {
  const CallRules rules = {.must_call = request.must_call,
                           .parallel = request.parallel_tool_calls,
                           .names = request.tool_names};
  const Json none;
  const auto found = request.variables.find("tools");
  const Json& tools = found == request.variables.end() ? none : *found;
  const bool has_calls = constrain_calls(serving, rules, tools, request.params.constraint);
  return prepare(serving, request, [&](const std::string& message) {
    const auto about = has_calls ? message_about_tools(message, tools, rules) : std::nullopt;
    if (about) throw ApiError(400, *about, "tools");
  });
}

}  // namespace

std::shared_ptr<const RequestParams> prepare(
    const Serving& serving, const OpenAiRequest& request,
    const std::function<void(const std::string& message)>& explain) {
  constexpr std::string_view kForm = "structured_outputs";
  try {
    return serving.requests.prepare(request.params);
  } catch (const UserError& e) {
    const std::string message = e.what();
    if (!message.starts_with(kForm)) throw;
    if (explain) explain(message);
    throw ApiError(400, request.form_field + message.substr(kForm.size()), request.form_field);
  }
}

Conversation read_conversation(const Serving& serving, ChatRequest& request,
                               const std::stop_token& stop) {
  if (!serving.chat_template)
    throw ApiError(400, "the model has no chat template; use /v1/completions");
  serving.tokenizer();  // throws if there is none
  OfferedTools tools;
  if (!request.tool_names.empty()) tools = OfferedTools::of(request.variables.at("tools"));
  Json& messages = request.variables["messages"];
  drop_client_lines(messages);
  if (serving.drops_media) replace_media(messages);
  bool in_reasoning = request.continues_answer && ends_in_thoughts(messages.back());
  for (const auto& [name, value] : serving.template_defaults.items())
    request.variables.emplace(name, Json(value));
  std::string text = serving.chat_template->prompt(std::exchange(request.variables, {}), stop);
  Conversation conversation;
  conversation.prompt = serving.encode(text, request.add_special_tokens, request.cache_salt, stop);
  conversation.num_prompt_tokens = static_cast<int64_t>(conversation.prompt.size());
  text.resize(text.find_last_not_of("\n ") + 1);
  if (!request.continues_answer) in_reasoning = text.ends_with(kThink);
  conversation.parsing = serving.answer_form.parsing(std::move(tools));
  conversation.parsing.begins_in_reasoning = in_reasoning;
  conversation.parsing.parallel_calls = request.parallel_tool_calls;
  if (request.params.skip_special_tokens)
    conversation.shown_tokens = serving.answer_form.show_tags(conversation.parsing);
  return conversation;
}

Conversation add_conversation(const Serving& serving, ChatRequest& request, Generation& generation,
                              const std::stop_token& stop) {
  const auto params = prepare_chat(serving, request);
  free_lists(request.params);
  Conversation conversation = read_conversation(serving, request, stop);
  std::vector<int32_t> prompt = std::exchange(conversation.prompt, {});
  if (request.return_token_ids) conversation.prompt = prompt;
  generation
      .add(serving, std::move(prompt), params, request.cache_salt,
           /*may_think=*/conversation.parsing.splits_reasoning && !request.continues_answer)
      .request->show_special_tokens(conversation.shown_tokens);
  generation.n = request.params.n;
  generation.stream = request.stream;
  return conversation;
}

}  // namespace nanovllm::server
