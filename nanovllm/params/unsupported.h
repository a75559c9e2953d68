#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/json.h"

// Names in the interfaces of vLLM, OpenAI and Anthropic that this program has not, so that what is
// written for them runs here too. A value that asks for nothing is accepted and has no effect;
// other values are refused by name. Names with an effect are not listed here: they are fields of
// EngineConfig or SamplingParams, or belong to a command or a request.
namespace nanovllm {

struct UnsupportedName {
  /// Where a name stands; several are added up.
  enum Place : uint32_t {
    // Options of the command line
    kEngineOption = 1,  ///< of every command that loads a model, and an argument of Python's LLM
    kServeOption = 2,   ///< of `serve`
    kBenchOption = 4,   ///< of the commands of `bench` that load a model
    kBenchServeOption = 8,  ///< of `bench serve`
    // Fields of JSON
    kLine = 16,        ///< of a line of a batch file itself
    kBody = 32,        ///< of the body of OpenAI's requests, or in sampling_params
    kMessages = 64,    ///< of the body of Anthropic's /v1/messages
    kResponses = 128,  ///< of the body of /v1/responses
    // Arguments in Python
    kSamplingParams = 256,
    kGenerate = 512,  ///< of LLM.generate
    kChat = 1024,     ///< of LLM.chat
  };
  /// What stands behind an option.
  enum class Takes : uint8_t { kNothing, kValue, kValues };

  std::string_view name;  ///< "swap-space" for --swap-space and Python's swap_space, "best_of"
  uint32_t places = 0;
  Takes takes = Takes::kValue;
  /// The values that ask for nothing, separated by '|'. "*": all values. Those of an option are
  /// texts; a flag has the values true and false, and "MODEL" is the name or the folder of the
  /// model. Those of a field or an argument are JSON; "LIST" is any list.
  std::string_view harmless = {};
  /// Why other values of an option are refused. Errors of fields and arguments have no reason.
  std::string_view reason = {};

  /// Whether an option's value asks for nothing. An empty value, None, null, {} and [] never ask
  /// for anything. `model` are the names that the model has.
  bool is_harmless(std::string_view value, std::span<const std::string> model) const;
  /// Throws UserError "<shown> is not supported: <reason>" if an option's value asks for something.
  void check(std::string_view value, std::span<const std::string> model,
             std::string_view shown) const;
  /// The values of a field or an argument that ask for nothing, besides null: the text of a JSON
  /// list, or "LIST".
  std::string harmless_json() const;
  /// Whether a field's value is one of these.
  bool is_harmless_json(const Json& value) const;
};

/// All of them, sorted by name; a name stands there once for each rule that it has. The options are
/// those of vLLM's versions 0.6 to 0.33.
/// Source: the output of vLLM's `serve --help`, and its documentation of engine arguments.
const std::vector<UnsupportedName>& unsupported_names();

/// The one of this name at one of the places; null if there is none. The words of an option are
/// separated by dashes or underscores.
const UnsupportedName* find_unsupported(std::string name, uint32_t places);

/// Throws UserError "<name> <value> is not supported" if the field is unsupported at one of the
/// places and asks for something. Returns false if it is not listed there.
bool refuse_unsupported(const std::string& name, const Json& value, uint32_t places);

}  // namespace nanovllm
