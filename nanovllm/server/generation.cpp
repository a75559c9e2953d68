#include "nanovllm/server/generation.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/ids.h"
#include "nanovllm/server/openai/answer_parser.h"
#include "nanovllm/server/openai/chunks.h"
#include "nanovllm/server/openai/request.h"
#include "nanovllm/server/openai/response.h"

namespace nanovllm::server {

namespace {

constexpr const char* kJson = "application/json";

const Tokenizer& tokenizer_of(const Serving& serving) {
  const auto tokenizer = serving.client.engine().tokenizer();
  if (tokenizer == nullptr)
    throw ApiError(400, "the model has no tokenizer: give prompts as token ids");
  return *tokenizer;
}

TokenText token_text(const Serving& serving) {
  return [tokenizer = serving.client.engine().tokenizer()](int32_t id) {
    return tokenizer ? tokenizer->decode(std::span(&id, 1), /*skip_special_tokens=*/false)
                     : std::string();
  };
}

ResponseHead head_of(const Serving& serving, const OpenAiRequest& request,
                     std::string_view prefix) {
  if (!request.model.empty() &&
      std::ranges::find(serving.names, request.model) == serving.names.end())
    throw ApiError::unknown_model(request.model);
  return {new_id(prefix), std::time(nullptr),
          request.model.empty() ? serving.names.front() : request.model};
}

/// The sequences of a request, while it waits and runs.
class Admission {
 public:
  Admission(Serving& serving, int64_t num_sequences)
      : serving_(serving), num_sequences_(num_sequences) {
    if (serving.num_sequences + num_sequences > serving.most_sequences)
      throw ApiError::queue_full(serving.most_sequences);
    serving.num_sequences += num_sequences;
  }
  Admission(const Admission&) = delete;
  ~Admission() { serving_.num_sequences -= num_sequences_; }

 private:
  Serving& serving_;
  const int64_t num_sequences_;
};

/// Calls on_update(index, update) for every update, until all of the call's requests have finished
/// or the client is gone. Returns through `gone`.
template <class OnUpdate, class OnPause>
Task<> for_updates(EngineCall& call, size_t num_requests, bool& gone, OnUpdate on_update,
                   OnPause on_pause) {
  std::vector<RequestUpdate> updates;
  for (size_t num_finished = 0; num_finished < num_requests;) {
    co_await call.next(updates);
    if (updates.empty()) {
      gone = true;
      co_return;
    }
    for (RequestUpdate& update : updates) {
      if (update.finished) ++num_finished;
      on_update(call.index_of(update), update);
    }
    co_await on_pause();
  }
}

TokensView tokens_of(const RequestUpdate& update, const TokenLogprobs*& logprobs) {
  logprobs = &update.logprobs;
  return {update.token_ids, {logprobs, update.logprobs.empty() ? size_t{0} : size_t{1}}};
}

ChunkOptions chunk_options_of(const Serving& serving, const OpenAiRequest& request) {
  return {.token_text = token_text(serving),
          .token_ids = request.return_token_ids,
          .include_usage = request.include_usage};
}
ResponseOptions response_options_of(const Serving& serving, const OpenAiRequest& request) {
  return {.token_text = token_text(serving),
          .token_ids = request.return_token_ids,
          .prompt_logprobs = request.return_prompt_logprobs};
}

/// The events after the last answer has ended.
template <class Chunks>
Task<> end_stream(HttpReply& reply, const Chunks& chunks, const OpenAiRequest& request,
                  const Usage& usage) {
  if (request.include_usage) {
    std::string chunk;
    chunks.usage(chunk, usage);
    reply.add_event(chunk);
  }
  reply.add_event("[DONE]");
  co_await reply.end_events();
}

// -- completions

struct PreparedCompletion {
  CompletionRequest request;
  ResponseHead head;
  std::vector<NewRequest> made;
  std::vector<std::string> echoes;  // the texts of the prompts, if they are part of the answers
  std::vector<std::vector<int32_t>> prompts;
};

PreparedCompletion prepare_completion(const Serving& serving, const std::string& body) {
  PreparedCompletion now;
  now.request = completion_request(parse_json(body, "the body"), serving.defaults);
  now.head = head_of(serving, now.request, "cmpl-");
  for (const PromptInput& prompt : now.request.prompts) {
    const auto* const text = std::get_if<std::string>(&prompt);
    const auto* const ids = std::get_if<std::vector<int32_t>>(&prompt);
    now.prompts.push_back(
        ids != nullptr ? *ids
                       : tokenizer_of(serving).encode(*text, now.request.add_special_tokens));
    if (now.request.echo)
      now.echoes.push_back(text != nullptr ? *text : tokenizer_of(serving).decode(*ids, false));
    now.made.push_back(serving.client.engine().prepare(now.prompts.back(), now.request.params,
                                                       now.request.cache_salt));
  }
  return now;
}

}  // namespace

Task<> answer_completion(Serving& serving, const HttpRequest& http, HttpReply& reply) {
  PreparedCompletion now;
  const auto prepare = [&] { now = prepare_completion(serving, http.body); };
  co_await on_pool(serving.pool, prepare);
  const CompletionRequest& request = now.request;
  const int64_t n = request.params.n;
  const size_t num_prompts = now.made.size();
  const Admission admission(serving, n * static_cast<int64_t>(num_prompts));
  EngineCall call(serving.client, serving.io, reply.generation);
  const auto interrupt = [&] { call.interrupt(); };
  reply.on_gone(interrupt);
  for (NewRequest& made : now.made) call.submit(std::move(made));

  std::vector<RequestOutput> outputs(num_prompts);
  Usage usage;
  const ChunkOptions chunk_options = chunk_options_of(serving, request);
  CompletionChunks chunks(now.head, chunk_options);
  std::vector<char> has_begun(num_prompts * static_cast<size_t>(n)), has_ended(has_begun.size());
  std::string chunk;
  const auto add_chunk = [&](int64_t choice, const CompletionChunks::Piece& piece) {
    chunk.clear();
    chunks.add(chunk, choice, piece, request.continuous_usage ? &usage : nullptr);
    reply.add_event(chunk);
  };
  const auto on_update = [&](size_t prompt, RequestUpdate& update) {
    const int64_t choice = static_cast<int64_t>(prompt) * n + update.choice;
    if (request.stream) {
      char& begun = has_begun[static_cast<size_t>(choice)];
      if (!std::exchange(begun, 1) && (request.echo || request.return_token_ids)) {
        CompletionChunks::Piece first;
        if (request.echo) first.text = now.echoes[prompt];
        if (request.return_token_ids) first.prompt_token_ids = now.prompts[prompt];
        add_chunk(choice, first);
      }
      const bool ends = !update.finish_reason.empty();
      const TokenLogprobs* logprobs = nullptr;
      CompletionChunks::Piece piece;
      if (!request.prompt_only) {
        piece.text = update.text;
        piece.tokens = tokens_of(update, logprobs);
      }
      if (ends) piece.end = {finish_reason_of(update.finish_reason, false), &update.stop_reason};
      const bool is_visible =
          !piece.text.empty() || ends || request.return_token_ids || request.params.logprobs;
      if (is_visible && !update.token_ids.empty()) add_chunk(choice, piece);
      if (ends) has_ended[static_cast<size_t>(choice)] = 1;
    }
    if (!update.finished) return;
    usage.add(*update.finished);
    outputs[prompt] = std::move(*update.finished);
    for (int64_t i = 0; request.stream && i < n; ++i) {
      const int64_t rest = static_cast<int64_t>(prompt) * n + i;
      if (has_ended[static_cast<size_t>(rest)]) continue;
      CompletionChunks::Piece piece;
      const CompletionOutput& answer = outputs[prompt].outputs[static_cast<size_t>(i)];
      piece.end = {finish_reason_of(answer.finish_reason, false), &answer.stop_reason};
      add_chunk(rest, piece);
    }
  };
  bool gone = false;
  const auto on_pause = [&]() -> Task<> {
    if (request.stream) co_await reply.flush();
  };
  if (request.stream) co_await reply.begin_events();
  co_await for_updates(call, num_prompts, gone, on_update, on_pause);
  if (gone) co_return;
  if (request.stream) {
    co_await end_stream(reply, chunks, request, usage);
    co_return;
  }
  std::vector<PromptAnswers> answers;
  for (size_t i = 0; i < num_prompts; ++i) {
    answers.emplace_back();
    answers.back().output = &outputs[i];
    if (request.echo) answers.back().echo = now.echoes[i];
    answers.back().echo_tokens = request.echo && request.params.logprobs.has_value();
    answers.back().prompt_only = request.prompt_only;
  }
  const ResponseOptions options = response_options_of(serving, request);
  co_await reply.send(200, kJson, completion_response(now.head, answers, options), HttpHeaders());
}

// -- conversations

namespace {

struct PreparedChat {
  ChatRequest request;
  ResponseHead head;
  NewRequest made;
  std::vector<int32_t> prompt;
  AnswerParser::Options parsing;
};

PreparedChat prepare_chat(const Serving& serving, const std::string& body) {
  PreparedChat now;
  now.request = chat_request(parse_json(body, "the body"), serving.defaults);
  now.head = head_of(serving, now.request, "chatcmpl-");
  if (!serving.chat_template)
    throw ApiError(400, "the model has no chat template; use /v1/completions");
  const Tokenizer& tokenizer = tokenizer_of(serving);
  std::string text = serving.chat_template->prompt(now.request.variables);
  now.prompt = tokenizer.encode(text, now.request.add_special_tokens);
  now.made =
      serving.client.engine().prepare(now.prompt, now.request.params, now.request.cache_salt);
  now.parsing.splits_reasoning = tokenizer.token_to_id("<think>").has_value();
  text.resize(text.find_last_not_of("\n ") + 1);
  now.parsing.begins_in_reasoning = text.ends_with("<think>");
  now.parsing.tool_names = now.request.tool_names;
  return now;
}

/// Leaves only the first call of an answer if the client wants no more.
void limit_calls(std::vector<ToolCall>& calls, bool parallel) {
  if (!parallel) std::erase_if(calls, [](const ToolCall& call) { return call.index > 0; });
}

}  // namespace

Task<> answer_chat(Serving& serving, const HttpRequest& http, HttpReply& reply) {
  PreparedChat now;
  const auto prepare = [&] { now = prepare_chat(serving, http.body); };
  co_await on_pool(serving.pool, prepare);
  const ChatRequest& request = now.request;
  const auto n = static_cast<size_t>(request.params.n);
  const Admission admission(serving, request.params.n);
  EngineCall call(serving.client, serving.io, reply.generation);
  const auto interrupt = [&] { call.interrupt(); };
  reply.on_gone(interrupt);
  call.submit(std::move(now.made));

  RequestOutput output;
  Usage usage;
  const ChunkOptions chunk_options = chunk_options_of(serving, request);
  const ChatChunks chunks(now.head, chunk_options);
  struct Choice {
    AnswerParser parser;
    bool has_begun = false, has_ended = false, has_calls = false;
  };
  std::vector<Choice> choices;
  for (size_t i = 0; i < n; ++i) choices.push_back({AnswerParser(now.parsing)});
  std::string chunk;
  const auto add_chunk = [&](auto... arguments) {
    chunk.clear();
    chunks.add(chunk, arguments..., request.continuous_usage ? &usage : nullptr);
    reply.add_event(chunk);
  };
  const auto stream = [&](const RequestUpdate& update) {
    Choice& choice = choices[static_cast<size_t>(update.choice)];
    if (!std::exchange(choice.has_begun, true)) {
      chunk.clear();
      chunks.begin(chunk, update.choice, now.prompt, request.continuous_usage ? &usage : nullptr);
      reply.add_event(chunk);
    }
    AnswerParts parts = choice.parser.add(update.text);
    const bool ends = !update.finish_reason.empty();
    if (ends) {
      AnswerParts rest = choice.parser.finish();
      parts.reasoning += rest.reasoning;
      parts.content += rest.content;
      std::ranges::move(rest.calls, std::back_inserter(parts.calls));
      choice.has_ended = true;
    }
    limit_calls(parts.calls, request.parallel_tool_calls);
    choice.has_calls = choice.has_calls || !parts.calls.empty();
    std::vector<ToolCallDelta> calls;
    for (const ToolCall& c : parts.calls) calls.push_back({c.index, c.id, c.name, c.arguments});
    const TokenLogprobs* logprobs = nullptr;
    ChatChunks::Piece piece;
    piece.content = parts.content;
    piece.reasoning = parts.reasoning;
    piece.tool_calls = calls;
    piece.tokens = tokens_of(update, logprobs);
    if (ends)
      piece.end = {finish_reason_of(update.finish_reason, choice.has_calls), &update.stop_reason};
    if (!parts.empty() || ends || request.return_token_ids || request.params.logprobs)
      add_chunk(int64_t{update.choice}, piece);
  };
  const auto on_update = [&](size_t, RequestUpdate& update) {
    if (request.stream && (!update.token_ids.empty() || !update.finish_reason.empty()))
      stream(update);
    if (!update.finished) return;
    usage.add(*update.finished);
    output = std::move(*update.finished);
    for (size_t i = 0; request.stream && i < n; ++i) {
      if (choices[i].has_ended) continue;
      ChatChunks::Piece piece;
      piece.end = {finish_reason_of(output.outputs[i].finish_reason, false),
                   &output.outputs[i].stop_reason};
      add_chunk(static_cast<int64_t>(i), piece);
    }
  };
  bool gone = false;
  const auto on_pause = [&]() -> Task<> {
    if (request.stream) co_await reply.flush();
  };
  if (request.stream) co_await reply.begin_events();
  co_await for_updates(call, 1, gone, on_update, on_pause);
  if (gone) co_return;
  if (request.stream) {
    co_await end_stream(reply, chunks, request, usage);
    co_return;
  }
  std::vector<AnswerParts> answers;
  for (const CompletionOutput& answer : output.outputs) {
    answers.push_back(parse_answer(answer.text, now.parsing));
    limit_calls(answers.back().calls, request.parallel_tool_calls);
  }
  const ResponseOptions options = response_options_of(serving, request);
  co_await reply.send(200, kJson, chat_response(now.head, output, answers, options), HttpHeaders());
}

}  // namespace nanovllm::server
