#include "apps/batch/result_format.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

namespace nanovllm {

namespace {

uint64_t hash_of_ids(std::span<const int32_t> ids) {
  return hash_of({reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
}

uint64_t hash_of_fields(const Json& object) {
  Json fields = Json::array();
  for (const char* name : {"id", "custom_id"}) fields.push_back(object.value(name, Json()));
  return hash_of(dump_json(fields));
}

HeldResult read_plain(const Json& result) {
  HeldResult held{.index = result.at("index").get<int64_t>(), .outcome = outcome_of(result)};
  held.key.fields = hash_of_fields(result);
  if (const auto ids = result.find("prompt_token_ids"); ids != result.end())
    held.key.prompt = hash_of_ids(ids->get<std::vector<int32_t>>());
  return held;
}

}  // namespace

const ResultFormat kPlainResults = {R"({"index":)", read_plain};

uint64_t hash_of(std::string_view bytes) { return std::hash<std::string_view>()(bytes) | 1; }

ResultKey key_of(const Prompt& prompt) {
  return {.prompt = prompt.error.empty() ? hash_of_ids(prompt.token_ids) : 0,
          .fields = hash_of_fields(prompt.passed)};
}

}  // namespace nanovllm
