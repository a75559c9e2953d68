#include "nanovllm/server/conversation/conversation.h"

#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {

Conversation read_conversation(const Serving& serving, const ChatRequest& request) {
  if (!serving.chat_template)
    throw ApiError(400, "the model has no chat template; use /v1/completions");
  const Tokenizer& tokenizer = serving.tokenizer();
  std::string text = serving.chat_template->prompt(request.variables);
  Conversation conversation;
  conversation.prompt = serving.encode(text, request.add_special_tokens, request.cache_salt);
  text.resize(text.find_last_not_of("\n ") + 1);
  conversation.parsing = {.splits_reasoning = tokenizer.token_to_id("<think>").has_value(),
                          .begins_in_reasoning = text.ends_with("<think>"),
                          .tool_names = request.tool_names,
                          .parallel_calls = request.parallel_tool_calls};
  return conversation;
}

}  // namespace nanovllm::server
