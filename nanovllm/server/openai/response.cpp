#include "nanovllm/server/openai/response.h"

#include <type_traits>
#include <variant>

#include "nanovllm/base/check.h"
#include "nanovllm/server/http/json_text.h"

namespace nanovllm::server {

namespace {

void append_tool_calls(std::string& to, std::span<const ToolCall> calls) {
  for (size_t i = 0; i < calls.size(); ++i) {
    to += i == 0 ? R"([{"id":)" : R"(,{"id":)";
    append_json_string(to, calls[i].id);
    append_member(to, R"(,"type":"function","function":{"name":)", calls[i].name);
    append_member(to, R"(,"arguments":)", calls[i].arguments);
    to += "}}";
  }
  to += ']';
}

/// The content of a message that only calls tools is null, as in OpenAI's API.
void append_message(std::string& to, const AnswerParts& answer) {
  to += R"({"role":"assistant","content":)";
  if (answer.content.empty() && !answer.calls.empty()) to += "null";
  else append_json_string(to, answer.content);
  to += R"(,"refusal":null)";
  if (!answer.reasoning.empty()) {
    to += ',';
    append_reasoning(to, answer.reasoning);
  }
  if (!answer.calls.empty()) {
    to += R"(,"tool_calls":)";
    append_tool_calls(to, answer.calls);
  }
  to += '}';
}

void append_end_of_choice(std::string& to, const CompletionOutput& output, bool has_tool_calls) {
  append_member(to, R"(,"finish_reason":)", finish_reason_of(output.finish_reason, has_tool_calls));
  to += R"(,"stop_reason":)";
  append_stop_reason(to, output.stop_reason);
}

void append_prompt(std::string& to, const RequestOutput& output, const ResponseOptions& options) {
  if (options.prompt_logprobs) {
    to += R"(,"prompt_logprobs":)";
    append_prompt_logprobs(to, output.prompt_logprobs, options.token_text);
  }
  if (options.token_ids) {
    append_member(to, R"(,"prompt_token_ids":)", output.prompt_token_ids);
  }
}

void append_completion(std::string& to, int64_t index, const PromptAnswers& prompt,
                       const CompletionOutput& output, const ResponseOptions& options) {
  append_member(to, R"({"index":)", index);
  append_member(to, R"(,"text":)", prompt.prompt_only ? prompt.echo : prompt.echo + output.text);
  to += R"(,"logprobs":)";
  TokensView before, after;
  if (!prompt.echo_offsets.empty())
    before = {prompt.output->prompt_token_ids, prompt.output->prompt_logprobs};
  if (!prompt.prompt_only) after = {output.token_ids, output.logprobs};
  TextOffset offset = prompt.offset;
  append_completion_logprobs(to, before, prompt.echo_offsets, after, offset, options.token_text);
  append_end_of_choice(to, output, false);
  if (options.token_ids) {
    append_member(to, R"(,"token_ids":)", after.ids);
  }
  append_prompt(to, *prompt.output, options);
  to += '}';
}

}  // namespace

void Usage::add(const RequestOutput& output) {
  prompt_tokens += static_cast<int64_t>(output.prompt_token_ids.size());
  cached_tokens += output.num_cached_tokens;
  for (const CompletionOutput& answer : output.outputs)
    completion_tokens += static_cast<int64_t>(answer.token_ids.size());
}

Usage usage_of(std::span<const RequestOutput> outputs) {
  Usage usage;
  for (const RequestOutput& output : outputs) usage.add(output);
  return usage;
}

std::string_view finish_reason_of(std::string_view finish_reason, bool has_tool_calls) {
  return has_tool_calls && finish_reason == "stop" ? "tool_calls" : finish_reason;
}

std::string chat_response(const ResponseHead& head, const RequestOutput& output,
                          std::span<const AnswerParts> answers, const ResponseOptions& options) {
  check(answers.size() == output.outputs.size(), "{} answers for {} choices", answers.size(),
        output.outputs.size());
  std::string to = response_start(head, "chat.completion");
  for (size_t i = 0; i < answers.size(); ++i) {
    const CompletionOutput& choice = output.outputs[i];
    to += i == 0 ? R"([{"index":)" : R"(,{"index":)";
    append_number(to, static_cast<int64_t>(i));
    to += R"(,"message":)";
    append_message(to, answers[i]);
    to += R"(,"logprobs":)";
    append_chat_logprobs(to, {choice.token_ids, choice.logprobs}, options.token_text);
    append_end_of_choice(to, choice, !answers[i].calls.empty());
    if (options.token_ids) {
      append_member(to, R"(,"token_ids":)", choice.token_ids);
    }
    to += '}';
  }
  to += R"(],"usage":)";
  append_usage(to, usage_of({&output, 1}));
  append_prompt(to, output, options);
  to += '}';
  return to;
}

std::string completion_response(const ResponseHead& head, std::span<const PromptAnswers> prompts,
                                const ResponseOptions& options) {
  std::string to = response_start(head, "text_completion");
  Usage usage;
  int64_t index = 0;
  for (const PromptAnswers& prompt : prompts) {
    for (const CompletionOutput& output : prompt.output->outputs) {
      to += index == 0 ? '[' : ',';
      append_completion(to, index++, prompt, output, options);
    }
    usage.add(*prompt.output);
    // The token that the engine needed is none of the response.
    if (prompt.prompt_only) usage.completion_tokens = 0;
  }
  to += R"(],"usage":)";
  append_usage(to, usage);
  to += '}';
  return to;
}

std::string model_response(const ServedModel& model) {
  std::string to = R"({"id":)";
  append_json_string(to, model.name);
  append_member(to, R"(,"object":"model","created":)", model.created);
  append_member(to, R"(,"owned_by":"nanovllm","max_model_len":)", model.max_model_len);
  to += '}';
  return to;
}

std::string models_response(std::span<const ServedModel> models) {
  std::string to = R"({"object":"list","data":[)";
  for (size_t i = 0; i < models.size(); ++i) to += (i == 0 ? "" : ",") + model_response(models[i]);
  return to + "]}";
}

std::string response_start(const ResponseHead& head, std::string_view object) {
  std::string to = R"({"id":)";
  append_json_string(to, head.id);
  append_member(to, R"(,"object":)", object);
  append_member(to, R"(,"created":)", head.created);
  append_member(to, R"(,"model":)", head.model);
  to += R"(,"choices":)";
  return to;
}

void append_usage(std::string& to, const Usage& usage) {
  append_member(to, R"({"prompt_tokens":)", usage.prompt_tokens);
  append_member(to, R"(,"completion_tokens":)", usage.completion_tokens);
  append_member(to, R"(,"total_tokens":)", usage.prompt_tokens + usage.completion_tokens);
  append_member(to, R"(,"prompt_tokens_details":{"cached_tokens":)", usage.cached_tokens);
  to += "}}";
}

void append_reasoning(std::string& to, std::string_view reasoning) {
  to += R"("reasoning_content":)";
  const size_t text = to.size();
  append_json_string(to, reasoning);
  const size_t size = to.size() - text;
  to += R"(,"reasoning":)";
  to.append(to, text, size);
}

void append_stop_reason(std::string& to, const std::optional<StopReason>& reason) {
  if (!reason) to += "null";
  else if (const auto* token = std::get_if<int32_t>(&*reason)) append_number(to, *token);
  else append_json_string(to, std::get<std::string>(*reason));
}

}  // namespace nanovllm::server
