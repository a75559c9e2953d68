#pragma once

#include <string>
#include <vector>

#include "apps/cli/command.h"
#include "nanovllm/base/config.h"
#include "nanovllm/params/generation_config.h"

namespace nanovllm {

/// The sampling options of a command in which the values of the checkpoint's generation_config.json
/// may apply (`chat`, `generate --chat`).
struct SamplingOptions {
  SamplingParams params;
  std::vector<std::string> given;  ///< names of the fields that options set
  GenerationConfig generation_config;

  /// Adds the sampling options, --generation-config and --override-generation-config, and the
  /// options for the form of the answer.
  void add_to(Command command);
  /// Fills `given` and the form of the answer. Must be called after the command line was parsed.
  /// Throws UserError for a form that cannot be read, and for several.
  void find_given(Command command);
  /// The parameters of a conversation: the values of the options, and the values of MODEL's
  /// generation_config.json for the fields that no option sets. If neither limits the answer, only
  /// the context does. Throws UserError.
  SamplingParams for_chat(const std::string& model) const;

 private:
  std::string json_schema_, regex_, grammar_;
  std::vector<std::string> choices_;
};

}  // namespace nanovllm
