#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/batch/output_json.h"
#include "apps/batch/result_format.h"
#include "nanovllm/server/generation.h"

namespace nanovllm {

/// A line of OpenAI's batch files, {"custom_id", "method", "url", "body"}, and the parts of its
/// answer that have arrived.
struct BatchRequest {
  Json custom_id;
  std::string request_id;
  server::Generation generation;       ///< for the engine; no requests: the line was refused
  std::vector<RequestOutput> outputs;  ///< outputs[i] answers generation.requests[i]
  size_t num_left = 0;                 ///< outputs that have not arrived yet
  int status = 200;                    ///< the response's status; 0: the line is no request
  std::string body;                    ///< the body of an error, or why the line is no request

  ResultKey key() const;
};

/// Reads the lines of OpenAI's batch files, and writes its result lines with the bodies that the
/// server would answer: {"id", "custom_id", "response": {"status_code", "request_id", "body"},
/// "error"}. A request that the server would refuse has a response with its status and error; a
/// line that is no request has the response null and an error {"code", "message"}.
/// Source: OpenAI's API reference, "The request input object" and "The request output object".
class OpenAiBatch {
 public:
  /// `max_tokens` is for completions that have none.
  OpenAiBatch(const server::Serving& serving, std::optional<int64_t> max_tokens)
      : serving_(serving), max_tokens_(max_tokens) {}

  /// Reads a line; does not throw if it is wrong. The field model is ignored; responses name the
  /// model that has answered.
  BatchRequest read(const std::string& line, int64_t line_number) const;
  /// Keeps an answer of generation.requests[i]. Returns whether all answers have arrived.
  static bool add(BatchRequest& request, size_t i, RequestOutput output);
  /// The result line, which ends with a newline. Call it when all answers have arrived.
  static std::string result(BatchRequest& request, int64_t index);
  static Outcome outcome_of(const BatchRequest& request);

 private:
  void prepare(Json line, BatchRequest& request) const;

  const server::Serving& serving_;
  std::optional<int64_t> max_tokens_;
};

/// The form of the result lines. Their ids have the index of the request.
extern const ResultFormat kOpenAiResults;

}  // namespace nanovllm
