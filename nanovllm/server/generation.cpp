#include "nanovllm/server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/limits.h"

namespace nanovllm::server {

namespace {

constexpr size_t kTokenBytes = 8;      // an id and its text
constexpr size_t kLogprobBytes = 112;  // a Logprob and its JSON text
/// A response of up to this size is written on the I/O thread.
constexpr size_t kMostBytesHere = size_t{64} << 10;

/// The sequences of a request, while it waits and runs.
class Admission {
 public:
  Admission(LiveServing& serving, const Generation& generation)
      : serving_(serving),
        num_sequences_(generation.n * static_cast<int64_t>(generation.requests.size())) {
    if (num_sequences_ > serving.most_sequences)  // even an idle server could not take the request
      throw ApiError(400,
                     fmt::format("n {} times {} prompts is {} answers; at most {} may run and wait",
                                 generation.n, generation.requests.size(), num_sequences_,
                                 serving.most_sequences),
                     "n");
    if (serving.num_sequences + num_sequences_ > serving.most_sequences)
      throw ApiError::queue_full(serving.most_sequences);
    serving.num_sequences += num_sequences_;
  }
  Admission(const Admission&) = delete;
  ~Admission() { serving_.num_sequences -= num_sequences_; }

 private:
  LiveServing& serving_;
  const int64_t num_sequences_;
};

/// Calls `then` if the client disconnects. The destructor makes the reply forget `then`, because
/// the reply may live longer.
class WhenGone {
 public:
  WhenGone(HttpReply& reply, std::function<void()> then) : reply_(reply) {
    reply.on_gone(std::move(then));
  }
  WhenGone(const WhenGone&) = delete;
  ~WhenGone() { reply_.on_gone(nullptr); }

 private:
  HttpReply& reply_;
};

size_t bytes_of(const auto& list) { return list.size() * sizeof list[0]; }

/// The memory that RequestParams takes, here and on the ranks. It does not depend on the number of
/// prompts and choices.
size_t bytes_of(const RequestParams& params) {
  constexpr size_t kBiasBytes = 64;  // a node of a map
  constexpr size_t kCopies = 5;      // a step's arrays and buffers, and those of a rank
  size_t bytes = sizeof params + params.given.logit_bias.size() * kBiasBytes +
                 params.stop.num_bytes() +
                 kCopies * (bytes_of(params.stop_ids) + bytes_of(params.bad_words) +
                            bytes_of(params.allowed_ids) + bytes_of(params.allowed_mask));
  for (const auto* texts : {&params.given.stop, &params.given.bad_words})
    for (const std::string& text : *texts) bytes += sizeof(std::string) + text.size();
  if (params.given.allowed_token_ids) bytes += bytes_of(*params.given.allowed_token_ids);
  return bytes;
}

/// The memory that a request for a prompt takes besides its parameters: the prompt, and for each
/// choice copies of the prompt and the answer.
size_t bytes_of(const RequestParams& params, size_t prompt_len, int64_t max_tokens) {
  constexpr size_t kIdBytes = sizeof(int32_t);
  constexpr size_t kChoiceBytes = 2048;  // objects
  const SamplingParams& given = params.given;
  const auto logprob_bytes = [](const std::optional<int64_t>& number) {
    return number ? static_cast<size_t>(*number + 1) * kLogprobBytes : 0;
  };
  // The prompt's tokens also go to the ranks if the sampler needs to know them.
  const bool sends_tokens =
      !params.bad_words.empty() || SamplingScalars::of(given, 0, 0).has_penalties();
  const size_t answer =
      static_cast<size_t>(max_tokens) * (kTokenBytes + logprob_bytes(given.logprobs));
  const size_t choice = kChoiceBytes + prompt_len * kIdBytes * (sends_tokens ? 5 : 1) + answer;
  return prompt_len * (kIdBytes + logprob_bytes(given.prompt_logprobs)) +
         static_cast<size_t>(given.n) * choice;
}

/// About the memory that a response takes.
size_t bytes_of(const std::vector<RequestOutput>& outputs) {
  size_t bytes = 0;
  const auto add = [&](const std::vector<TokenLogprobs>& logprobs) {
    for (const TokenLogprobs& entries : logprobs) bytes += entries.size() * kLogprobBytes;
  };
  for (const RequestOutput& output : outputs) {
    add(output.prompt_logprobs);
    for (const CompletionOutput& answer : output.outputs) {
      bytes += answer.text.size() + answer.token_ids.size() * kTokenBytes;
      add(answer.logprobs);
    }
  }
  return bytes;
}

/// The updates of a call's choices on their way to the writer, and the results.
class Progress {
 public:
  Progress(Generation& generation, HttpReply& reply)
      : generation_(generation), reply_(reply), outputs_(generation.requests.size()) {}

  void add(size_t request, RequestUpdate& update) {
    write(request, update);
    if (!update.finished) return;
    ++num_finished_;
    outputs_[request] = std::move(*update.finished);
    if (const auto error = error_of(outputs_[request])) throw *error;
  }

  bool is_complete() const { return num_finished_ == outputs_.size(); }
  const std::vector<RequestOutput>& outputs() const { return outputs_; }
  std::vector<RequestOutput> take_outputs() { return std::exchange(outputs_, {}); }

 private:
  void write(size_t request, const RequestUpdate& update) {
    const bool ends = !update.finish_reason.empty();
    if (!generation_.stream || (update.token_ids.empty() && !ends)) return;
    if (update.finish_reason == "error") return;  // add() throws the error
    generation_.writer->add(reply_, request, update);
  }

  Generation& generation_;
  HttpReply& reply_;
  std::vector<RequestOutput> outputs_;
  size_t num_finished_ = 0;
};

}  // namespace

std::optional<ApiError> error_of(const RequestOutput& output) {
  for (const CompletionOutput& answer : output.outputs)
    if (answer.finish_reason == "error")
      return ApiError(answer.is_request_at_fault ? 400 : 500, answer.error);
  return std::nullopt;
}

const Tokenizer& Serving::tokenizer() const {
  if (vocabulary == nullptr)
    throw ApiError(400, "the model has no tokenizer: give prompts as token ids");
  return *vocabulary;
}

NewRequest& Generation::add(const Serving& serving, std::vector<int32_t> prompt,
                            const std::shared_ptr<const RequestParams>& params,
                            const std::string& cache_salt, bool may_think) {
  const RequestFactory& factory = serving.requests;
  if (requests.empty()) num_bytes = bytes_of(*params);
  const int64_t max_tokens = factory.max_tokens(params->given, prompt.size());
  if (max_tokens > 0) num_bytes += bytes_of(*params, prompt.size(), max_tokens);
  if (num_bytes > kMaxRequestBytes)
    throw ApiError(
        400, fmt::format("the request may hold more than {} MiB of memory: lower n, max_tokens, "
                         "logprobs, or the number of prompts, biases or bad words",
                         kMaxRequestBytes >> 20));
  return requests.emplace_back(factory.make(std::move(prompt), params, cache_salt, may_think));
}

const std::string& Serving::name_of(const std::string& asked) const {
  if (asked.empty()) return names.front();
  const auto found = std::ranges::find(names, asked);
  if (found == names.end()) throw ApiError::unknown_model(asked);
  return *found;
}

Task<> work_for_client(WorkPool& pool, const HttpRequest& http, HttpReply& reply,
                       std::stop_source& stop, std::function<void()> work) {
  const WhenGone cancel(reply, [&stop] { stop.request_stop(); });
  const std::function<void()> unless_gone = [&] {
    if (stop.stop_requested()) throw Cancelled();
    work();
  };
  co_await on_pool(pool.lane(http.body.size()), unless_gone);
  if (stop.stop_requested()) throw Cancelled();
}

Task<> generate(LiveServing& serving, HttpRequest& http, HttpReply& reply, ReadGeneration read,
                size_t most_bytes_here) {
  // If the queue is full, refuse the request before rendering and tokenizing it.
  if (serving.num_sequences >= serving.most_sequences)
    throw ApiError::queue_full(serving.most_sequences);
  Generation generation;
  std::stop_source stop;
  const auto prepare = [&] { generation = read(serving, http.body, stop.get_token()); };
  if (http.body.size() <= most_bytes_here) prepare();
  else co_await work_for_client(serving.pool, http, reply, stop, prepare);
  http.drop_body();
  const Admission admission(serving, generation);
  EngineCall call(serving.client, serving.io, reply.record);
  const WhenGone interrupt(reply, [&call] { call.interrupt(); });
  Progress progress(generation, reply);
  for (NewRequest& request : generation.requests) call.submit(std::move(request));
  if (generation.stream) {
    co_await reply.begin_events();
    generation.writer->begin(reply);
    co_await reply.flush();
  }
  const bool keeps_alive = generation.stream && serving.keep_alive.count() > 0;
  auto patience = std::chrono::steady_clock::time_point::max();
  if (keeps_alive) patience = std::chrono::steady_clock::now() + serving.keep_alive;
  std::vector<RequestUpdate> updates;
  while (!progress.is_complete()) {
    co_await call.next(updates, patience);
    for (RequestUpdate& update : updates) progress.add(call.index_of(update), update);
    if (!generation.stream) continue;
    if (keeps_alive) {
      // An update may add no event, for example while the answer may be the beginning of a call.
      const auto now = std::chrono::steady_clock::now();
      if (!reply.has_events() && now >= patience) reply.add_comment();
      if (reply.has_events()) patience = now + serving.keep_alive;
    }
    co_await reply.flush();
  }
  if (generation.stream) {
    generation.writer->end(reply, progress.outputs());
    co_await reply.end_events();
    co_return;
  }
  std::string whole;
  // Freeing a million log-probabilities takes time, too.
  const std::function<void()> write = [&] {
    whole = generation.writer->whole(progress.take_outputs());
  };
  const size_t bytes = bytes_of(progress.outputs());
  if (bytes <= kMostBytesHere) write();
  else co_await on_pool(serving.pool.lane(bytes), write);
  co_await reply.send(200, "application/json", std::move(whole), HttpHeaders());
}

}  // namespace nanovllm::server
