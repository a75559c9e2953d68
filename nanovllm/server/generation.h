#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/server/engine_client.h"
#include "nanovllm/server/http/http.h"
#include "nanovllm/text/chat_template.h"

namespace nanovllm::server {

/// The most bytes of texts and token ids that Serving::encoded_parts keeps. A conversation of
/// 16,000 tokens takes about 130 KB.
inline constexpr size_t kEncodedBytes = size_t{32} << 20;

/// What the answers to all requests need. Used by the I/O thread, and by the pool only to read.
struct Serving {
  asio::io_context& io;
  asio::thread_pool& pool;  ///< for JSON, templates and tokenizing
  EngineClient client;
  std::optional<ChatTemplate> chat_template;
  SamplingParams defaults;
  std::vector<std::string> names;  ///< of the model; a request without a name means the first one
  int64_t most_sequences = 0;      ///< that may run or wait; further requests get status 429
  int64_t num_sequences = 0;
  mutable EncodedParts encoded_parts{kEncodedBytes};  ///< the earlier turns of conversations

  /// Throws ApiError if the model has none.
  const Tokenizer& tokenizer() const;
  /// Tokenizer::encode(). What requests with another cache_salt have sent has no influence on the
  /// time.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens,
                              std::string_view cache_salt) const {
    return tokenizer().encode(text, add_special_tokens, &encoded_parts, cache_salt);
  }
  /// The name of the model for a response; `asked` is that of the request, which may be empty.
  /// Throws ApiError if the model has no such name.
  const std::string& name_of(const std::string& asked) const;
};

/// How the answers to one request are written for its client. Each API has a class for it.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
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
};

/// Reads the body of a request. Called on a thread of the pool. Throws ApiError or another
/// UserError.
using ReadGeneration = Generation (*)(const Serving& serving, const std::string& body);

/// Runs a request and writes its answer; the body is freed before it runs. Throws what `read`
/// throws before anything was sent, and EngineDead or ApiError at any time. If the client
/// goes, the requests end. A body of up to `most_bytes_here` is read on this thread instead of the
/// pool's.
Task<> generate(Serving& serving, HttpRequest& http, HttpReply& reply, ReadGeneration read,
                size_t most_bytes_here = 0);

}  // namespace nanovllm::server
