#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "nanovllm/base/json.h"

namespace nanovllm {

/// tokenizer.json's `normalizer`: Sequence, NFC, Prepend, Replace of a string; null changes
/// nothing.
class Normalizer {
 public:
  /// Throws UserError, beginning with `where`, that names what is not supported.
  Normalizer(const Json& json, const std::string& where);

  /// Well-formed `text` as it should be: itself where nothing changes, else in `storage`.
  std::string_view normalize(std::string_view text, std::string& storage) const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    std::string what, with;
  };
  std::vector<std::variant<Nfc, Prepend, Replace>> steps_;
};

/// `text` with each `what`, which is not empty, replaced.
std::string replace_all(std::string_view text, std::string_view what, std::string_view with);

}  // namespace nanovllm
