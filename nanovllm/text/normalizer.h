#pragma once

#include <cstdint>
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

  /// Well-formed `text` as it should be: itself where nothing changes, else in `storage`. Throws
  /// UserError where it gets longer than max_grown().
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

/// The most bytes that the steps of a pipeline together may make of `text_bytes`. A file of a few
/// kilobytes could double a text forty times; what is published makes at most three of one.
inline size_t max_grown(size_t text_bytes) { return 64 * text_bytes + 1024; }

/// `text` with each `what`, which is not empty, replaced. Throws UserError where that gets longer
/// than `max_bytes`.
std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        size_t max_bytes = SIZE_MAX);

}  // namespace nanovllm
