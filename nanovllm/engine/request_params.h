#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/ops/sample_row.h"
#include "nanovllm/text/constraint.h"
#include "nanovllm/text/stop_strings.h"

namespace nanovllm {

/// The sampling parameters of a request in the forms in which the engine uses them.
/// RequestFactory::prepare() makes them once, and all prompts and choices share them.
struct RequestParams {
  uint64_t id = 0;  ///< different for each object of the process, and not 0
  SamplingParams given;
  StopPatterns stop = {};
  std::vector<int32_t> stop_ids = {};  ///< end tokens and stop_token_ids, sorted
  // The lists that a running choice takes along to the ranks, in the formats of SlotSetup. If all
  // tokens are allowed, both lists of them are empty; otherwise the longer form is.
  std::vector<int32_t> bad_words = {}, allowed_ids = {}, allowed_mask = {};

  std::shared_ptr<grammar::Grammar> grammar = {};  ///< null: the answers are free

  bool has_allowed_ids() const { return !allowed_ids.empty() || !allowed_mask.empty(); }
  /// Whether a running choice takes lists along.
  bool has_lists() const {
    return has_allowed_ids() || !bad_words.empty() || given.min_tokens > 0 ||
           !given.logit_bias.empty() || SamplingScalars::of(given, 0, 0).has_penalties();
  }
};

}  // namespace nanovllm
