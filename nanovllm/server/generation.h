#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "nanovllm/server/conversation/answer_form.h"
#include "nanovllm/server/engine_client.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/http.h"
#include "nanovllm/server/responses/store.h"
#include "nanovllm/server/work_pool.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm::server {

/// The most bytes of texts and token ids that Serving::encoded_parts keeps. A conversation of
/// 16,000 tokens takes about 130 KB.
inline constexpr size_t kEncodedBytes = size_t{32} << 20;

/// The objects that reading requests and writing their answers need, in a server and for a batch
/// file.
struct Serving {
  const EngineSetup& setup;
  const RequestFactory& requests;
  std::shared_ptr<const Tokenizer> vocabulary;  ///< null: the model has no tokenizer
  std::optional<ChatTemplate> chat_template;
  AnswerForm answer_form = {};  ///< known if there is a chat template
  SamplingParams defaults;
  Json template_defaults;          ///< variables of the chat template that a request may replace
  std::vector<std::string> names;  ///< the model's names; the first one is the default
  bool drops_media = false;        ///< ServerOptions::drops_media
  ResponseStore* responses = nullptr;                 ///< null for a batch file
  mutable EncodedParts encoded_parts{kEncodedBytes};  ///< the earlier turns of conversations

  /// Throws ApiError if the model has no tokenizer.
  const Tokenizer& tokenizer() const;
  /// Tokenizer::encode() with encoded_parts. Texts of requests with another cache_salt have no
  /// influence on the time it takes.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens,
                              std::string_view cache_salt, const std::stop_token& stop) const {
    return tokenizer().encode(text, add_special_tokens,
                              {.known = &encoded_parts, .owner = cache_salt, .stop = stop});
  }
  /// The name of the model for a response. `asked` is the name in the request, which may be empty.
  /// Throws ApiError if the model has no such name.
  const std::string& name_of(const std::string& asked) const;
};

/// The Serving of a server. The I/O thread uses it, and the threads of the pool only read it.
struct LiveServing : Serving {
  asio::io_context& io;
  WorkPool& pool;  ///< for JSON, templates and tokenizing
  EngineClient client;
  int64_t most_sequences = 0;  ///< the most that run or wait; further requests get status 429
  std::chrono::steady_clock::duration keep_alive{};  ///< ServerOptions::sse_keepalive; 0: never
  int64_t num_sequences = 0;
};

/// The error of an answer that the engine could not finish, because the request forbids every token
/// or the logits are not numbers. APIs have no finish_reason for that.
std::optional<ApiError> error_of(const RequestOutput& output);

/// Writes the answers to one request for its client. Each API has a class for this.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  /// Adds the events with which a stream begins, before there is a token.
  virtual void begin(HttpReply& /*stream*/) {}
  /// Adds the events of an update to a stream. `request` is the index in Generation::requests. The
  /// update has new tokens, or its choice ends. Each choice ends once.
  virtual void add(HttpReply& stream, size_t request, const RequestUpdate& update) = 0;
  /// Adds the last events of a stream.
  virtual void end(HttpReply& stream, const std::vector<RequestOutput>& outputs) = 0;
  /// The text of a response that is not a stream. outputs[i] answers Generation::requests[i].
  virtual std::string whole(const std::vector<RequestOutput>& outputs) = 0;
};

/// A request of a client, ready for the engine.
struct Generation {
  std::vector<NewRequest> requests;
  int64_t n = 1;  ///< choices of each request
  bool stream = false;
  std::unique_ptr<AnswerWriter> writer;
  /// The most memory that the requests will hold until the response is written.
  size_t num_bytes = 0;

  /// Adds a request for a prompt. `may_think`: see RequestFactory::make(). Throws UserError, also
  /// if the requests may hold more than kMaxRequestBytes; then nothing was allocated for this
  /// request.
  NewRequest& add(const Serving& serving, std::vector<int32_t> prompt,
                  const std::shared_ptr<const RequestParams>& params, const std::string& cache_salt,
                  bool may_think = false);
};

/// Reads the body of a request. Called on a thread of the pool. Throws ApiError or another
/// UserError, and Cancelled after a request to stop.
using ReadGeneration = Generation (*)(const Serving& serving, const std::string& body,
                                      const std::stop_token& stop);

/// Calls `work` on the pool, in the lane for the size of the request's body. If the client
/// disconnects, requests `stop` and throws Cancelled when the work has ended.
Task<> work_for_client(WorkPool& pool, const HttpRequest& http, HttpReply& reply,
                       std::stop_source& stop, std::function<void()> work);

/// Runs a request and writes its answer; the body is freed before it runs. Throws what `read`
/// throws before anything was sent, and EngineDead or ApiError at any time. If the client
/// disconnects, the reading and the requests end. A body of up to `most_bytes_here` is read on this
/// thread instead of one of the pool.
Task<> generate(LiveServing& serving, HttpRequest& http, HttpReply& reply, ReadGeneration read,
                size_t most_bytes_here = 0);

}  // namespace nanovllm::server
