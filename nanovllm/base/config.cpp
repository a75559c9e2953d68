#include "nanovllm/base/config.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/strings/suggestion.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

// The limit of a float (3.4e38) is mentioned only if x exceeds it. All other limits need at most 10
// digits.
std::string Allowed::range(double x) const {
  constexpr double kHuge = 1e30;
  if (most > kHuge && x > most) return fmt::format("at most {:.2g}", most);
  if (most > kHuge) return fmt::format("{} {:.10g}", excludes_least ? "above" : "at least", least);
  if (excludes_least) return fmt::format("above {:.10g} and at most {:.10g}", least, most);
  const std::string limits = fmt::format("from {:.10g} to {:.10g}", least, most);
  return multiple_of > 1 ? fmt::format("a multiple of {}, {}", multiple_of, limits) : limits;
}

namespace {

// There is one check for each type that a field may have.

template <class Number>
void check_number(const FieldInfo& field, Number value) {
  const auto& [least, most, excludes_least, multiple_of, choices, others] = field.allowed;
  const auto x = static_cast<double>(value);
  bool is_right = std::isfinite(x) && x >= least && x <= most && !(excludes_least && x == least);
  if constexpr (std::is_integral_v<Number>) is_right = is_right && value % multiple_of == 0;
  require(is_right, "{} is {}; it must be {}", field.name, value, field.allowed.range(x));
}
void check_value(const FieldInfo& field, double value) { check_number(field, value); }
void check_value(const FieldInfo& field, int64_t value) { check_number(field, value); }
void check_value(const FieldInfo&, bool) {}
void check_value(const FieldInfo&, uint64_t) {}

void check_value(const FieldInfo& field, const StructuredOutputs& form) {
  std::vector<std::string> given;
  for (const auto& [name, is_given] :
       {std::pair("json", form.json.has_value()), std::pair("regex", form.regex.has_value()),
        std::pair("choice", !form.choice.empty()), std::pair("grammar", form.grammar.has_value()),
        std::pair("json_object", form.json_object),
        std::pair("structural_tag", form.structural_tag.has_value())})
    if (is_given) given.emplace_back(name);
  require(given.size() == 1,
          "{} has {}; it must have one of json, regex, choice, grammar, json_object and "
          "structural_tag",
          field.name, given.empty() ? "no form" : join(given, " and "));
}

void check_value(const FieldInfo& field, const std::string& text) {
  const auto end = std::ranges::find(field.allowed.choices, nullptr);
  const std::vector<std::string> choices(field.allowed.choices.begin(), end);
  const auto is_text = [&](const char* choice) { return choice != nullptr && text == choice; };
  require(choices.empty() || std::ranges::count(choices, text) > 0 ||
              std::ranges::any_of(field.allowed.other_choices, is_text),
          "{} is '{}'; it must be one of {}{}", field.name, text, join(choices, ", "),
          did_you_mean(text, choices));
}

void check_item(const FieldInfo& field, int32_t id) {
  require(id >= 0, "{} contains {}; an id is at least 0", field.name, id);
}
void check_item(const FieldInfo& field, const std::string& text) {
  require(!text.empty(), "{} contains an empty text", field.name);
}
void check_item(const FieldInfo& field, const std::pair<const int32_t, double>& item) {
  check_item(field, item.first);
  check_number(field, item.second);
}

template <class T>
requires requires(T list) { list.begin(); }
void check_value(const FieldInfo& field, const T& list) {
  for (const auto& item : list) check_item(field, item);
}

template <class T>
void check_value(const FieldInfo& field, const std::optional<T>& value) {
  if (!value) return;
  if constexpr (requires { value->empty(); })
    require(!value->empty(), "{} is empty; it must contain at least one id", field.name);
  check_value(field, *value);
}

template <class Struct>
void check_fields(const Struct& values) {
  Struct::for_each_field(
      [&](const FieldInfo& field, auto member) { check_value(field, values.*member); });
}

}  // namespace

void EngineConfig::validate() const { check_fields(*this); }

void SamplingParams::validate() const {
  check_fields(*this);
  require(min_tokens <= max_tokens, "min_tokens is {}; it must be at most max_tokens, {}",
          min_tokens, max_tokens);
}

void EngineConfig::choose_batched_tokens() {
  if (max_num_batched_tokens > 0) return;
  max_num_batched_tokens = device == "cuda" ? cuda_batched_tokens : cpu_batched_tokens;
}

std::string EngineConfig::cache_folder() const {
  if (!use_cache || !cache_dir.empty()) return use_cache ? cache_dir : "";
  const std::string folder = user_folder("XDG_CACHE_HOME", ".cache");
  return folder.empty() ? folder : folder + "/nanovllm";
}

}  // namespace nanovllm
