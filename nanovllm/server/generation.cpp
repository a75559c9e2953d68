#include "nanovllm/server/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "nanovllm/server/http/api_error.h"

namespace nanovllm::server {

namespace {

/// The sequences of a request, while it waits and runs.
class Admission {
 public:
  Admission(Serving& serving, const Generation& generation)
      : serving_(serving),
        num_sequences_(generation.n * static_cast<int64_t>(generation.requests.size())) {
    if (num_sequences_ > serving.most_sequences)  // it would not fit an idle server either
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
  Serving& serving_;
  const int64_t num_sequences_;
};

/// Interrupts a call if its client goes. The destructor makes the reply forget the call, because
/// the reply may live longer.
class InterruptWhenGone {
 public:
  InterruptWhenGone(HttpReply& reply, EngineCall& call) : reply_(reply) {
    reply.on_gone([&call] { call.interrupt(); });
  }
  InterruptWhenGone(const InterruptWhenGone&) = delete;
  ~InterruptWhenGone() { reply_.on_gone(nullptr); }

 private:
  HttpReply& reply_;
};

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
    check_errors(outputs_[request]);
  }

  bool is_complete() const { return num_finished_ == outputs_.size(); }
  const std::vector<RequestOutput>& outputs() const { return outputs_; }

 private:
  void write(size_t request, const RequestUpdate& update) {
    const bool ends = !update.finish_reason.empty();
    if (!generation_.stream || (update.token_ids.empty() && !ends)) return;
    if (update.finish_reason == "error") return;  // check_errors() follows
    generation_.writer->add(reply_, request, update);
  }

  /// APIs have no finish_reason for an answer that failed: its request forbids every token, or the
  /// logits are not numbers.
  static void check_errors(const RequestOutput& output) {
    for (const CompletionOutput& answer : output.outputs)
      if (answer.finish_reason == "error")
        throw ApiError(answer.is_request_at_fault ? 400 : 500, answer.error);
  }

  Generation& generation_;
  HttpReply& reply_;
  std::vector<RequestOutput> outputs_;
  size_t num_finished_ = 0;
};

}  // namespace

const Tokenizer& Serving::tokenizer() const {
  const auto tokenizer = client.engine().tokenizer();
  if (tokenizer == nullptr)
    throw ApiError(400, "the model has no tokenizer: give prompts as token ids");
  return *tokenizer;
}

const std::string& Serving::name_of(const std::string& asked) const {
  if (asked.empty()) return names.front();
  const auto found = std::ranges::find(names, asked);
  if (found == names.end()) throw ApiError::unknown_model(asked);
  return *found;
}

Task<> generate(Serving& serving, HttpRequest& http, HttpReply& reply, ReadGeneration read,
                size_t most_bytes_here) {
  // A full queue costs no template and no tokenizing.
  if (serving.num_sequences >= serving.most_sequences)
    throw ApiError::queue_full(serving.most_sequences);
  Generation generation;
  const auto prepare = [&] { generation = read(serving, http.body); };
  if (http.body.size() <= most_bytes_here) prepare();
  else co_await on_pool(serving.pool, prepare);
  http.drop_body();
  const Admission admission(serving, generation);
  EngineCall call(serving.client, serving.io, reply.record);
  const InterruptWhenGone interrupt(reply, call);
  Progress progress(generation, reply);
  for (NewRequest& request : generation.requests) call.submit(std::move(request));
  if (generation.stream) co_await reply.begin_events();
  std::vector<RequestUpdate> updates;
  while (!progress.is_complete()) {
    co_await call.next(updates);
    if (updates.empty()) co_return;  // the client is gone
    for (RequestUpdate& update : updates) progress.add(call.index_of(update), update);
    if (generation.stream) co_await reply.flush();
  }
  if (generation.stream) {
    generation.writer->end(reply, progress.outputs());
    co_await reply.end_events();
    co_return;
  }
  const std::string whole = generation.writer->whole(progress.outputs());
  co_await reply.send(200, "application/json", whole, HttpHeaders());
}

}  // namespace nanovllm::server
