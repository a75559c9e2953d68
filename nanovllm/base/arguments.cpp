#include "nanovllm/base/arguments.h"

#include <fmt/format.h>

#include <cctype>
#include <optional>

namespace nanovllm {

namespace {

using Arguments = std::vector<std::string>;

template <class T>
void add(Arguments& arguments, const FieldInfo& field, const T& value) {
  arguments.emplace_back(field.flag());
  // The option of a bool has no value. fmt writes floats with as many digits as they need.
  if constexpr (!std::same_as<T, bool>) arguments.push_back(fmt::format("{}", value));
}
template <class T>
void add(Arguments& arguments, const FieldInfo& field, const std::vector<T>& values) {
  for (const T& value : values) add(arguments, field, value);
}
template <class T>
void add(Arguments& arguments, const FieldInfo& field, const std::optional<T>& value) {
  if (value) add(arguments, field, *value);
}
// No field of one of these types has an option.
void add(Arguments&, const FieldInfo&, const std::map<int32_t, double>&) {}
void add(Arguments&, const FieldInfo&, const std::optional<StructuredOutputs>&) {}

}  // namespace

template <class Struct>
Arguments to_arguments(const Struct& values) {
  Arguments arguments;
  Struct::for_each_field([&](const FieldInfo& field, auto member) {
    if (!field.option.empty() && values.*member != Struct().*member)
      add(arguments, field, values.*member);
  });
  return arguments;
}

template Arguments to_arguments(const EngineConfig& values);
template Arguments to_arguments(const SamplingParams& values);

std::string with_field_names(std::string message, std::string_view off) {
  const auto rename = [&](const FieldInfo& field, auto) {
    const std::string_view flag = field.flag();
    if (flag.empty()) return;
    const std::string name =
        flag.starts_with("--no-") ? fmt::format("{}{}", field.name, off) : field.name;
    for (size_t at = 0; (at = message.find(flag, at)) != std::string::npos;) {
      const size_t end = at + flag.size();
      const bool goes_on =
          end < message.size() && (std::isalnum(message[end]) || message[end] == '-');
      if (!goes_on) message.replace(at, flag.size(), name);
      at += goes_on ? flag.size() : name.size();
    }
  };
  EngineConfig::for_each_field(rename);
  SamplingParams::for_each_field(rename);
  return message;
}

}  // namespace nanovllm
