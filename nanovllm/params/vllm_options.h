#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm {

/// An option of vLLM that this program has not, so that what starts vLLM can start it too. A value
/// that can change neither an answer nor what clients may ask is accepted and has no effect; other
/// values are refused with the reason. Options with an effect are not listed here: they are fields
/// of EngineConfig, or belong to a command.
struct VllmOption {
  enum class Of : uint8_t { kEngine, kServer, kBench, kBenchServe };
  enum class Takes : uint8_t { kNothing, kValue, kValues };

  std::string_view name;  ///< "swap-space" for --swap-space, or for Python's swap_space
  /// kEngine: every command that loads a model, and Python's LLM. kServer: `serve`. kBench: the
  /// commands of `bench` that load a model. kBenchServe: `bench serve`.
  Of of = Of::kEngine;
  Takes takes = Takes::kValue;
  /// The values without an effect, separated by '|'; a flag has the values true and false. "*": all
  /// values. "MODEL": the name or the folder of the model.
  std::string_view harmless = {};
  std::string_view reason = {};  ///< why other values are refused

  /// Whether the value has no effect. An empty value, None, null, {} and [] never have one. `model`
  /// are the names that the model has.
  bool is_harmless(std::string_view value, std::span<const std::string> model) const;
  /// Throws UserError "<shown> is not supported: <reason>" if the value has an effect.
  void check(std::string_view value, std::span<const std::string> model,
             std::string_view shown) const;
};

/// The options of vLLM's versions 0.6 to 0.33 that this program has not.
/// Source: the output of vLLM's `serve --help`, and its documentation of engine arguments.
const std::vector<VllmOption>& vllm_options();

/// The option of `name`, whose words are separated by dashes or underscores; null if it is none, or
/// one of `bench serve` alone.
const VllmOption* find_vllm_option(std::string_view name);

}  // namespace nanovllm
