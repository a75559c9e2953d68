#include "nanovllm/base/arguments.h"

#include <fmt/format.h>

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
void add(Arguments&, const FieldInfo&, const std::map<int32_t, double>&) {}  // never has an option

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

}  // namespace nanovllm
