#include "nanovllm/text/conversation.h"

#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/text/messages.h"

namespace nanovllm {

namespace {

Json take(Json& request, const char* name) {
  const auto at = request.find(name);
  return at == request.end() ? Json() : std::move(*at);
}

}  // namespace

Json template_variables(Json request) {
  Json messages = take(request, "messages");
  check_messages(messages);
  Json variables = take(request, "chat_template_kwargs");
  if (variables.is_null()) variables = Json::object();
  require(variables.is_object(), "chat_template_kwargs must be an object");
  if (Json thinking = take(request, "enable_thinking"); !thinking.is_null()) {
    require(thinking.is_boolean(), "enable_thinking must be true or false");
    variables["enable_thinking"] = std::move(thinking);
  }
  variables["tools"] = take(request, "tools");  // null if there are none, as in transformers
  variables.emplace("documents", nullptr);
  variables["messages"] = std::move(messages);
  variables["add_generation_prompt"] = true;
  return variables;
}

}  // namespace nanovllm
