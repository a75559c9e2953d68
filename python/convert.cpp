#include "convert.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cctype>
#include <cmath>
#include <concepts>
#include <limits>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>

#include "nanovllm/base/arguments.h"
#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/params/structured_json.h"

namespace nb = nanobind;

namespace nanovllm::python {

namespace {

const char* kind_of(bool) { return "True or False"; }
const char* kind_of(double) { return "a number"; }
const char* kind_of(int64_t) { return "a whole number"; }
const char* kind_of(uint64_t) { return "a whole number of at most 64 bits"; }
const char* kind_of(const std::string&) { return "a string"; }
const char* kind_of(const std::vector<int32_t>&) { return "a list of token ids"; }
const char* kind_of(const std::vector<std::string>&) { return "a list of strings"; }
const char* kind_of(const std::map<int32_t, double>&) {
  return "a dictionary of token ids and numbers";
}
template <class T>
const char* kind_of(const std::optional<T>&) {
  return kind_of(T());
}

std::string shown(nb::handle value) {
  const std::string text = nb::repr(value).c_str();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

[[noreturn]] void wrong_type(const std::string& what, nb::handle value, const std::string& right) {
  throw nb::type_error((what + " is " + shown(value) + "; it must be " + right).c_str());
}

// Whether a value is a bool. In Python a bool is a number too, but a bool in place of a number is a
// mistake.
bool is_bool(nb::handle value) { return nb::isinstance<nb::bool_>(value); }
bool is_whole(nb::handle value) { return nb::isinstance<nb::int_>(value) && !is_bool(value); }

/// Throws the error for a whole number that the type of the field cannot hold.
[[noreturn]] void out_of_range(const FieldInfo& field, nb::handle value) {
  double x = PyLong_AsDouble(value.ptr());
  if (PyErr_Occurred() != nullptr) {  // the number is larger than any double
    PyErr_Clear();
    x = std::numeric_limits<double>::infinity();
  }
  const bool has_limit = std::isfinite(field.allowed.most);
  fail("{} is {}; it must be {}", field.name, shown(value),
       has_limit ? field.allowed.range(x) : kind_of(uint64_t()));
}

/// Checks token ids. `right` is the description of valid ids for wrong_type(). Throws UserError if
/// an id does not fit in 32 bits.
void check_token_ids(nb::handle ids, const char* what, const char* right) {
  int32_t number = 0;
  for (const nb::handle id : ids) {
    if (is_bool(id)) wrong_type(what, ids, right);
    if (is_whole(id) && !nb::try_cast(id, number))
      fail("{} contains {}; a token id is from 0 to {}", what, shown(id),
           std::numeric_limits<int32_t>::max());
  }
}

template <class T>
constexpr bool kIsNumber = std::is_arithmetic_v<T> && !std::same_as<T, bool>;
template <class T>
constexpr bool kIsNumber<std::optional<T>> = kIsNumber<T>;

/// Reads a field. None leaves it at its default, unless FieldInfo::none_means gives another value.
template <class T>
void read(nb::handle value, const FieldInfo& field, T& to) {
  if (value.is_none()) {
    if constexpr (std::same_as<T, int64_t>)
      if (field.none_means != 0) to = field.none_means;
    return;
  }
  if constexpr (std::same_as<T, std::vector<std::string>>)
    if (field.takes_one_text && nb::isinstance<nb::str>(value)) {
      to = {to_text(value, field.name)};
      return;
    }
  const bool is_right = std::same_as<T, bool> || !is_bool(value);
  if (is_right && nb::try_cast(value, to)) return;
  if (kIsNumber<T> && is_whole(value)) out_of_range(field, value);
  wrong_type(field.name, value, kind_of(T()));
}

/// Reads a seed. A negative one wraps around, as on the command line and in JSON.
void read(nb::handle value, const FieldInfo& field, std::optional<uint64_t>& to) {
  if (int64_t seed = 0; !is_bool(value) && nb::try_cast(value, seed))
    to = static_cast<uint64_t>(seed);
  else read<std::optional<uint64_t>>(value, field, to);
}

void read(nb::handle value, const FieldInfo& field, std::vector<int32_t>& to) {
  if (!value.is_none()) to = to_token_ids(value, field.name);
}
void read(nb::handle value, const FieldInfo& field, std::optional<std::vector<int32_t>>& to) {
  if (!value.is_none()) to = to_token_ids(value, field.name);
}
void read(nb::handle value, const FieldInfo& field, std::optional<StructuredOutputs>& to) {
  if (value.is_none()) return;
  const nb::object json =
      nb::module_::import_("nanovllm.structured_outputs").attr("json_of")(value);
  try {
    to = structured_outputs_from_json(parse_json(to_text(json, field.name), field.name));
  } catch (const UserError& e) {
    fail("{} {}", field.name, e.what());
  }
}
void read(nb::handle value, const FieldInfo& field, std::map<int32_t, double>& to) {
  if (nb::isinstance<nb::dict>(value)) check_token_ids(value, field.name, kind_of(to));
  read<std::map<int32_t, double>>(value, field, to);
}

template <class T>
nb::object to_python(const T& value) {
  return nb::cast(value);
}
nb::object to_python(const std::optional<StructuredOutputs>& form) {
  if (!form) return nb::none();
  return nb::module_::import_("json").attr("loads")(dump_json(to_json(*form)));
}

template <class Struct>
nb::dict fields_of(const Struct& values) {
  nb::dict dict;
  Struct::for_each_field([&](const FieldInfo& field, auto member) {
    dict[field.name] = to_python(values.*member);
    if constexpr (std::same_as<decltype(values.*member), const int64_t&>)
      if (field.none_means != 0 && values.*member == field.none_means)
        dict[field.name] = nb::none();
  });
  return dict;
}

nb::list from_logprobs(const std::vector<TokenLogprobs>& tokens) {
  nb::list list;
  for (const TokenLogprobs& token : tokens) {
    if (token.empty()) {
      list.append(nb::none());
      continue;
    }
    nb::list entries;
    for (const Logprob& e : token) {
      nb::dict entry;
      entry["id"] = e.id;
      entry["logprob"] = e.logprob;
      entry["rank"] = e.rank;
      entries.append(entry);
    }
    list.append(entries);
  }
  return list;
}

nb::dict from_answer(const CompletionOutput& answer) {
  nb::dict dict;
  dict["text"] = answer.text;
  dict["token_ids"] = answer.token_ids;
  dict["finish_reason"] = answer.finish_reason;
  dict["stop_reason"] = answer.stop_reason;
  if (!answer.logprobs.empty()) dict["logprobs"] = from_logprobs(answer.logprobs);
  if (!answer.error.empty()) dict["error"] = answer.error;
  return dict;
}

/// Adds the text of each token in `positions` to `texts`, which maps ids to texts.
void add_texts(nb::dict& texts, const std::vector<TokenLogprobs>& positions,
               const Tokenizer& tokenizer) {
  for (const TokenLogprobs& position : positions)
    for (const Logprob& entry : position) {
      const nb::int_ id(entry.id);
      if (!texts.contains(id))
        texts[id] = tokenizer.decode({&entry.id, 1}, /*skip_special_tokens=*/false);
    }
}

}  // namespace

std::string to_text(nb::handle text, const char* what) {
  if (!nb::isinstance<nb::str>(text)) wrong_type(what, text, "a string");
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    const nb::python_error error;
    require(!error.matches(PyExc_UnicodeEncodeError), "{} is not a valid text: {}", what,
            nb::str(error.value()).c_str());
    throw error;
  }
  return {data, static_cast<size_t>(size)};
}

std::vector<int32_t> to_token_ids(nb::handle ids, const char* what) {
  // numpy's arrays and PyTorch's tensors have tolist(), which is faster than asking for each item.
  const nb::object list =
      nb::hasattr(ids, "tolist") ? nb::object(ids.attr("tolist")()) : nb::borrow(ids);
  std::vector<int32_t> result;
  if (nb::isinstance<nb::list>(list) || nb::isinstance<nb::tuple>(list))
    check_token_ids(list, what, kind_of(result));
  if (!nb::try_cast(list, result)) wrong_type(what, ids, kind_of(result));
  return result;
}

Prompt to_prompt(nb::handle prompt) {
  if (nb::isinstance<nb::str>(prompt)) return to_text(prompt, "a prompt");
  std::vector<int32_t> ids;
  try {
    ids = to_token_ids(prompt, "a prompt");
  } catch (const nb::builtin_exception&) {
    wrong_type("a prompt", prompt,
               "a string, a list of token ids, or a dictionary with one of both");
  }
  return ids;
}

SamplingParams to_sampling_params(nb::handle object) {
  if (!nb::hasattr(object, "temperature")) wrong_type("sampling_params", object, "SamplingParams");
  SamplingParams params;
  SamplingParams::for_each_field([&](const FieldInfo& field, auto member) {
    read(object.attr(field.name), field, params.*member);
  });
  return params;
}

EngineConfig to_engine_config(const nb::dict& options) {
  EngineConfig config;
  EngineConfig::for_each_field([&](const FieldInfo& field, auto member) {
    if (options.contains(field.name)) read(options[field.name], field, config.*member);
  });
  return config;
}

nb::dict to_dict(const SamplingParams& params) { return fields_of(params); }
nb::dict to_dict(const EngineConfig& config) { return fields_of(config); }

template <class Struct>
nb::dict help_of_fields() {
  nb::dict help;
  Struct::for_each_field([&](const FieldInfo& field, auto member) {
    std::string text = field.help;
    // An option of the command line sets the opposite of a bool's default, and the help describes
    // what that does.
    if constexpr (std::same_as<std::remove_cvref_t<decltype(Struct().*member)>, bool>)
      if (!text.empty()) {
        text[0] = static_cast<char>(std::tolower(text[0]));
        text = (Struct().*member ? "False: " : "True: ") + text;
      }
    help[field.name] = nb::make_tuple(field.value_name(), with_python_names(text));
  });
  return help;
}
template nb::dict help_of_fields<SamplingParams>();
template nb::dict help_of_fields<EngineConfig>();

std::string with_python_names(std::string message) {
  message = with_field_names(std::move(message), "=False");
  // These are arguments of LLM, but no fields of EngineConfig.
  for (const auto& [option, name] :
       {std::pair("--override-generation-config", "override_generation_config"),
        std::pair("--generation-config", "generation_config")})
    if (message.starts_with(option)) message.replace(0, std::string_view(option).size(), name);
  return message;
}

nb::tuple from_output(const RequestOutput& output, const Tokenizer* tokenizer) {
  nb::list answers, sums;
  for (const CompletionOutput& answer : output.outputs) {
    answers.append(from_answer(answer));
    sums.append(nb::cast(answer.cumulative_logprob));
  }
  nb::dict keys = nb::borrow<nb::dict>(answers[0].attr("copy")());
  keys["prompt_token_ids"] = output.prompt_token_ids;
  keys["num_cached_tokens"] = output.num_cached_tokens;
  if (!output.prompt_logprobs.empty())
    keys["prompt_logprobs"] = from_logprobs(output.prompt_logprobs);
  keys["outputs"] = answers;

  nb::dict texts;
  if (tokenizer != nullptr) {
    add_texts(texts, output.prompt_logprobs, *tokenizer);
    for (const CompletionOutput& answer : output.outputs)
      add_texts(texts, answer.logprobs, *tokenizer);
  }
  nb::dict more;
  more["request_id"] = std::to_string(output.request_id);
  more["cumulative_logprobs"] = sums;
  more["decoded_tokens"] = texts;
  more["times"] = nb::make_tuple(output.arrival_time, output.first_token_time, output.finish_time);
  return nb::make_tuple(keys, more);
}

nb::tuple from_update(const RequestUpdate& update, const Tokenizer* tokenizer) {
  nb::dict piece, texts;
  piece["text"] = update.text;
  piece["token_ids"] = update.token_ids;
  piece["choice"] = update.choice;
  piece["finish_reason"] =
      update.finish_reason.empty() ? nb::none() : nb::cast(update.finish_reason);
  piece["stop_reason"] = update.stop_reason;
  piece["output"] =
      update.finished ? nb::object(from_output(*update.finished, tokenizer)) : nb::none();
  if (!update.logprobs.empty()) {
    const std::vector<TokenLogprobs> logprobs = {update.logprobs};
    piece["logprobs"] = from_logprobs(logprobs);
    if (tokenizer != nullptr) add_texts(texts, logprobs, *tokenizer);
  }
  return nb::make_tuple(piece, texts);
}

nb::dict from_stats(const EngineStats& stats) {
  nb::dict dict;
  dict["steps"] = stats.steps;
  dict["prefill_tokens"] = stats.prefill_tokens;
  dict["decode_tokens"] = stats.decode_tokens;
  dict["preemptions"] = stats.preemptions;
  dict["generated_tokens"] = stats.generated_tokens;
  dict["prefix_queries"] = stats.prefix_queries;
  dict["prefix_hits"] = stats.prefix_hits;
  dict["blocks_taken"] = stats.blocks_taken;
  dict["blocks_shared"] = stats.blocks_shared;
  dict["blocks_freed"] = stats.blocks_freed;
  dict["num_running"] = stats.num_running;
  dict["num_waiting"] = stats.num_waiting;
  dict["num_blocks"] = stats.num_blocks;
  dict["num_free_blocks"] = stats.num_free_blocks;
  dict["host_seconds"] = stats.host_seconds;
  dict["mask_seconds"] = stats.mask_seconds;
  dict["compile_seconds"] = stats.compile_seconds;
  dict["device_seconds"] = stats.device_seconds;
  return dict;
}

}  // namespace nanovllm::python
