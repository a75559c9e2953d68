#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/server/conversation/calls/value_types.h"

namespace nanovllm::server {

/// The arguments of a tool's calls, according to the tool's schema.
struct ToolSchema {
  std::unordered_map<std::string, ValueTypes> parameters;
  std::vector<std::string> required;  ///< parameters that no call lacks
};

/// The tools that a request offers to the model. Copies share their contents.
class OfferedTools {
 public:
  OfferedTools() = default;
  /// Makes tools about whose arguments nothing is known.
  OfferedTools(std::initializer_list<const char*> names);
  /// Makes tools from OpenAI's form, [{"function": {"name": "...", "parameters"?: schema}}, ...],
  /// which was checked.
  static OfferedTools of(const Json& tools);

  bool empty() const { return tools_ == nullptr || tools_->empty(); }
  /// Null if there is no such tool.
  const ToolSchema* find(const std::string& name) const;

 private:
  using ByName = std::unordered_map<std::string, ToolSchema>;
  std::shared_ptr<const ByName> tools_;
};

}  // namespace nanovllm::server
