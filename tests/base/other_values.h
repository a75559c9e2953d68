#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "nanovllm/base/config.h"
#include "nanovllm/base/error.h"

// Values for tests that loop over the fields of EngineConfig and SamplingParams. They choose a
// value for a new field without being changed.
namespace nanovllm::testing {

inline void list_values(const FieldInfo&, std::vector<double>& list) {
  list = {0.1 + 0.2, 1.5, 150};  // the first one needs 17 digits
}
inline void list_values(const FieldInfo&, std::vector<int64_t>& list) { list = {3, 48, 150}; }
inline void list_values(const FieldInfo&, std::vector<bool>& list) { list = {false, true}; }
inline void list_values(const FieldInfo& field, std::vector<std::string>& list) {
  for (const char* choice : field.allowed.choices)
    if (choice != nullptr) list.emplace_back(choice);
  if (list.empty()) list = {"some text"};
}
inline void list_values(const FieldInfo&, std::vector<std::optional<int64_t>>& list) { list = {3}; }
inline void list_values(const FieldInfo&, std::vector<std::optional<uint64_t>>& list) {
  list = {~uint64_t{0}};
}
inline void list_values(const FieldInfo&, std::vector<std::vector<int32_t>>& list) {
  list = {{3, 4}};
}
inline void list_values(const FieldInfo&, std::vector<std::optional<std::vector<int32_t>>>& list) {
  list = {{{3, 4}}};
}
inline void list_values(const FieldInfo&, std::vector<std::vector<std::string>>& list) {
  list = {{"two words", "\xc3\xa9"}};
}
inline void list_values(const FieldInfo&, std::vector<std::map<int32_t, double>>& list) {
  list = {{{3, -1.5}, {4, 0.1 + 0.2}}};
}
inline void list_values(const FieldInfo&, std::vector<std::optional<StructuredOutputs>>& list) {
  list.emplace_back();
  list.back().emplace().regex = "a+";
}

/// A Struct in which `member` has a valid value that is not the default.
template <class Struct, class T>
Struct with_other_value(const FieldInfo& field, T Struct::*member) {
  std::vector<T> list;
  list_values(field, list);
  for (const auto& value : list) {
    Struct values;
    values.*member = value;
    if (values == Struct()) continue;
    try {
      values.validate();
      return values;
    } catch (const UserError&) {
    }
  }
  ADD_FAILURE() << "no other value for " << field.name << ": give list_values() one";
  return {};
}

}  // namespace nanovllm::testing
