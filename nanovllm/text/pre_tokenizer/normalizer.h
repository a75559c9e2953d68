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

  /// Well-formed `text` as it should be: itself where nothing changes, else in `storage`. Takes the
  /// bytes of its steps from `work`, which is that of all parts of a text together, and throws
  /// UserError where that is not enough.
  std::string_view normalize(std::string_view text, std::string& storage, size_t& work) const;

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

/// The most bytes that the steps of a pipeline together may work on for a text. A file of a few
/// kilobytes could double a text forty times, or shrink and grow it by turns; published ones have
/// up to three steps, which make at most three bytes of one.
inline size_t max_work(size_t text_bytes) { return 32 * text_bytes + 4096; }

/// `text` with each `what`, which is not empty, replaced. Takes its bytes, before or after, from
/// `work`; throws UserError where that is not enough.
std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        size_t& work);
std::string replace_all(std::string_view text, std::string_view what, std::string_view with);

}  // namespace nanovllm
