#pragma once

#include <span>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/base/json.h"

namespace nanovllm {

/// Where the default sampling parameters of a conversation come from, as in vLLM.
struct GenerationConfig {
  /// auto: the model's generation_config.json; vllm: no file; else the folder of one.
  std::string source = "auto";
  /// A JSON object with values that replace those of the file, under its names.
  std::string overrides = {};

  /// The parameters that the file or `overrides` give, as a JSON object with the names of
  /// SamplingParams (max_new_tokens becomes max_tokens). `model` is its folder; without a
  /// generation_config.json it gives none. Throws UserError that names the file or the option.
  Json values(const std::string& model) const;
  /// `params` with these values, except those named in `given`. Throws UserError.
  SamplingParams apply(const std::string& model, const SamplingParams& params,
                       std::span<const std::string> given = {}) const;
  /// The same for a server: if nothing limits the length of an answer, max_tokens is kNoMaxTokens.
  SamplingParams defaults(const std::string& model) const {
    return apply(model, {.max_tokens = kNoMaxTokens});
  }
};

}  // namespace nanovllm
