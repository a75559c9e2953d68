#include "apps/cli/json_values.h"

#include <algorithm>

#include "nanovllm/base/check.h"

namespace nanovllm {

Json object_of(const std::string& text, const std::string& option) {
  Json object = parse_json(text, option);
  require(object.is_object(), "{} must be a JSON object, not {}", option, printable(object));
  return object;
}

std::vector<std::string> texts_of(const std::string& option,
                                  const std::vector<std::string>& given) {
  std::vector<std::string> texts;
  for (const std::string& text : given) {
    if (!text.starts_with('[')) {
      texts.push_back(text);
      continue;
    }
    for (const Json& item : parse_json(text, option)) {
      require(item.is_string(), "{}: {} is not a list of texts", option, text);
      texts.push_back(item.get<std::string>());
    }
  }
  for (const std::string& text : texts)
    require(!text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127; }),
            "{}: '{}' must be printable ASCII without spaces", option, text);
  return texts;
}

}  // namespace nanovllm
