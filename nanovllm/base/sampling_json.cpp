#include "nanovllm/base/sampling_json.h"

#include <charconv>
#include <functional>
#include <limits>
#include <map>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm {

namespace {

void read(const Json& json, double& value) {
  require(json.is_number(), "must be a number");
  value = json.get<double>();
}

void read(const Json& json, bool& value) {
  require(json.is_boolean(), "must be true or false");
  value = json.get<bool>();
}

void read(const Json& json, int64_t& value) {
  require(json.is_number_integer(), "must be a whole number");
  require(!json.is_number_unsigned() ||
              json.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()),
          "is too large");
  value = json.get<int64_t>();
}

void read(const Json& json, int32_t& value) {
  int64_t wide = 0;
  read(json, wide);
  require(wide >= 0 && wide <= std::numeric_limits<int32_t>::max(), "must be a token id, not {}",
          wide);
  value = static_cast<int32_t>(wide);
}

void read(const Json& json, uint64_t& value) {
  require(json.is_number_integer(), "must be a whole number");
  value =
      json.is_number_unsigned() ? json.get<uint64_t>() : static_cast<uint64_t>(json.get<int64_t>());
}

void read(const Json& json, std::string& value) {
  require(json.is_string(), "must be a text");
  value = json.get<std::string>();
}

template <class T>
void read(const Json& json, std::vector<T>& values) {
  require(json.is_array(), "must be a list");
  values.clear();
  for (const Json& item : json) read(item, values.emplace_back());
}

void read(const Json& json, std::map<int32_t, double>& values) {
  require(json.is_object(), "must be an object of token ids and biases");
  values.clear();
  for (const auto& [key, bias] : json.items()) {
    int32_t id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    require(error == std::errc() && end == key.data() + key.size() && id >= 0,
            "must have token ids as keys, not '{}'", key);
    read(bias, values[id]);
  }
}

template <class T>
void read(const Json& json, std::optional<T>& value) {
  value.reset();
  if (!json.is_null()) read(json, value.emplace());
}

using Reader = std::function<void(const Json&, SamplingParams&)>;

/// A field that has no "none" of its own keeps its value where the JSON says null.
template <class T>
Reader field(T SamplingParams::*member) {
  return [member](const Json& json, SamplingParams& params) {
    constexpr bool kHasNone = requires(T t) { t.reset(); };
    if (kHasNone || !json.is_null()) read(json, params.*member);
  };
}

const std::map<std::string, Reader>& fields() {
  using P = SamplingParams;
  static const std::map<std::string, Reader> all = {
      {"temperature", field(&P::temperature)},
      {"top_p", field(&P::top_p)},
      {"top_k", field(&P::top_k)},
      {"min_p", field(&P::min_p)},
      {"max_tokens",
       [](const Json& json, P& params) {
         if (json.is_null()) params.max_tokens = kNoMaxTokens;
         else read(json, params.max_tokens);
       }},
      {"min_tokens", field(&P::min_tokens)},
      {"ignore_eos", field(&P::ignore_eos)},
      {"stop_token_ids", field(&P::stop_token_ids)},
      {"presence_penalty", field(&P::presence_penalty)},
      {"frequency_penalty", field(&P::frequency_penalty)},
      {"repetition_penalty", field(&P::repetition_penalty)},
      {"logprobs", field(&P::logprobs)},
      {"prompt_logprobs", field(&P::prompt_logprobs)},
      {"logit_bias", field(&P::logit_bias)},
      {"allowed_token_ids", field(&P::allowed_token_ids)},
      {"bad_words", field(&P::bad_words)},
      {"n", field(&P::n)},
      {"seed", field(&P::seed)},
      {"skip_special_tokens", field(&P::skip_special_tokens)},
      {"stop",
       [](const Json& json, P& params) {
         if (json.is_string()) params.stop = {json.get<std::string>()};
         else if (!json.is_null()) read(json, params.stop);
       }},
  };
  return all;
}

}  // namespace

SamplingParams sampling_params_from_json(const Json& json, SamplingParams params,
                                         const std::string& where) {
  require(json.is_object(), "{}: must be an object", where);
  for (const auto& [name, value] : json.items()) {
    const auto reader = fields().find(name);
    require(reader != fields().end(), "{}: '{}' is not a sampling parameter of this build", where,
            name);
    try {
      reader->second(value, params);
    } catch (const UserError& e) {
      fail("{}: {} {}", where, name, e.what());
    }
  }
  try {
    params.validate();
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
  return params;
}

Json sampling_defaults(const std::string& folder) {
  const std::string path = folder + "/generation_config.json";
  Json defaults = Json::object();
  const auto text = read_file_if_there(path, kMaxConfigBytes);
  if (!text) return defaults;
  const Json config = parse_json(*text, path);
  require(config.is_object(), "{}: not a JSON object", path);
  const std::pair<const char*, const char*> names[] = {{"temperature", "temperature"},
                                                       {"top_p", "top_p"},
                                                       {"top_k", "top_k"},
                                                       {"min_p", "min_p"},
                                                       {"repetition_penalty", "repetition_penalty"},
                                                       {"max_new_tokens", "max_tokens"}};
  for (const auto& [theirs, ours] : names)
    if (const auto at = config.find(theirs); at != config.end() && !at->is_null())
      defaults[ours] = *at;
  return defaults;
}

std::vector<int32_t> token_ids_from_json(const Json& json, const std::string& where) {
  std::vector<int32_t> ids;
  try {
    read(json, ids);
  } catch (const UserError& e) {
    fail("{}: {}", where, e.what());
  }
  return ids;
}

}  // namespace nanovllm
