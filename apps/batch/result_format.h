#pragma once

#include <cstdint>
#include <string_view>

#include "apps/batch/output_json.h"
#include "apps/prompts.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

/// The properties that distinguish a result, or a line of a prompts file, from those of other
/// prompts.
struct ResultKey {
  uint64_t prompt = 0;  ///< a hash of the prompt; 0: the line was refused
  uint64_t fields = 0;  ///< a hash of the fields id and custom_id
};

uint64_t hash_of(std::string_view bytes);  ///< never 0
ResultKey key_of(const Prompt& prompt);

/// A result that was read from a file.
struct HeldResult {
  int64_t index = 0;  ///< index of its prompt
  ResultKey key = {};
  Outcome outcome = Outcome::kAnswered;
};

/// A form of the lines of a file of results.
struct ResultFormat {
  std::string_view start;                  ///< how each line begins
  HeldResult (*read)(const Json& result);  ///< throws an exception if it has another form
};

/// The form of the lines of `generate --json` (output_json.h). openai_batch.h has another form.
extern const ResultFormat kPlainResults;

}  // namespace nanovllm
