#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/text/pre_tokenizer/pattern.h"

namespace nanovllm {

struct Component;
struct TokenizerJson;

/// tokenizer.json's `normalizer`. Null changes nothing.
class Normalizer {
 public:
  /// Throws UserError that names what is not supported.
  explicit Normalizer(const TokenizerJson& json);

  struct Result {
    std::string_view text;
    bool has_start;  ///< whether it begins with the replacement of the first character
  };
  /// Normalizes `text`, which is well-formed UTF-8. The result is `text` itself if nothing changes;
  /// otherwise it is in `storage`. All parts of a text share the budget.
  Result normalize(std::string_view text, std::string& storage, WorkBudget& budget) const;

 private:
  struct Work;
  using Step = std::function<void(Work&)>;

  // Each of these functions adds the steps of a component.
  void add_bert(const Component& component);
  void add_byte_level(const Component&);
  void add_lowercase(const Component&);
  void add_nfc(const Component&);
  void add_nfd(const Component&);
  void add_nfkc(const Component&);
  void add_nfkd(const Component&);
  void add_nmt(const Component&);
  void add_prepend(const Component& component);
  void add_replace(const Component& component);
  void add_strip(const Component& component);
  void add_strip_accents(const Component&);
  // Adds a step that calls append() for each character, which appends the character's replacement.
  void add_for_each(void (*append)(char32_t c, std::string& out));

  std::vector<Step> steps_;
};

}  // namespace nanovllm
