#include "nanovllm/server/conversation/calls/offered_tools.h"

namespace nanovllm::server {

namespace {

ToolSchema schema_of(const Json& function) {
  ToolSchema schema;
  const Json parameters = Json::object();
  const auto given = function.find("parameters");
  const Json& root = given != function.end() && given->is_object() ? *given : parameters;
  if (const auto properties = root.find("properties");
      properties != root.end() && properties->is_object())
    for (const auto& [name, property] : properties->items())
      schema.parameters.emplace(name, types_of_schema(property, root));
  if (const auto required = root.find("required"); required != root.end() && required->is_array())
    for (const Json& name : *required)
      if (name.is_string()) schema.required.push_back(name.get<std::string>());
  return schema;
}

}  // namespace

OfferedTools::OfferedTools(std::initializer_list<const char*> names) {
  ByName tools;
  for (const char* name : names) tools.emplace(name, ToolSchema());
  tools_ = std::make_shared<const ByName>(std::move(tools));
}

OfferedTools OfferedTools::of(const Json& tools) {
  ByName by_name;
  for (const Json& tool : tools) {
    const Json& function = tool.at("function");
    by_name.emplace(function.at("name").get<std::string>(), schema_of(function));
  }
  OfferedTools offered;
  offered.tools_ = std::make_shared<const ByName>(std::move(by_name));
  return offered;
}

const ToolSchema* OfferedTools::find(const std::string& name) const {
  if (tools_ == nullptr) return nullptr;
  const auto found = tools_->find(name);
  return found == tools_->end() ? nullptr : &found->second;
}

}  // namespace nanovllm::server
