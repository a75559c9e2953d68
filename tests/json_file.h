#pragma once

#include <string>
#include <string_view>

#include "nanovllm/base/error.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/system/files.h"

namespace nanovllm::testing {

inline Json json_file(const std::string& path) {
  return parse_json(read_file(path, size_t{64} << 20), path);
}

inline bool is_json(std::string_view text) {
  try {
    parse_json(text, "text");
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace nanovllm::testing
