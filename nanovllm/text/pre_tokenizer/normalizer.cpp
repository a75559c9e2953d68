#include "nanovllm/text/pre_tokenizer/normalizer.h"

#include <algorithm>

#include "nanovllm/base/check.h"
#include "nanovllm/text/tokenizer/tokenizer_json.h"
#include "nanovllm/text/unicode.h"
#include "nanovllm/text/utf8.h"

namespace nanovllm {

namespace {

void require_at_most(size_t bytes, size_t max_bytes) {
  require(bytes <= max_bytes, "the tokenizer's steps make too much of the text");
}

void take(size_t bytes, size_t& work) {
  require_at_most(bytes, work);
  work -= bytes;
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& where) {
  for (const Json* component : components(json, "normalizers", where)) {
    const std::string type = string_field(*component, "type", where);
    const std::string here = fmt::format("{}: {}", where, type);
    if (type == "NFC") {
      steps_.emplace_back(Nfc{});
    } else if (type == "Prepend") {
      steps_.emplace_back(Prepend{string_field(*component, "prepend", here)});
    } else if (type == "Replace") {
      const Replace replace{
          string_field(field(*component, "pattern", here), "String", here + ": pattern"),
          string_field(*component, "content", here)};
      require(!replace.what.empty(), "{}: the pattern is empty", here);
      steps_.emplace_back(replace);
    } else {
      fail("{}: '{}' is not supported; Sequence, NFC, Prepend and Replace are", where, type);
    }
  }
}

std::string_view Normalizer::normalize(std::string_view text, std::string& storage,
                                       size_t& work) const {
  for (const auto& step : steps_) {
    std::string changed;
    if (std::holds_alternative<Nfc>(step)) {
      take(4 * text.size(), work);  // marks out of order take that much longer
      text = to_nfc(text, storage);
      continue;
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (text.empty()) continue;
      take(prepend->text.size() + text.size(), work);
      changed = prepend->text;
      changed += text;
    } else {
      const auto& replace = std::get<Replace>(step);
      changed = replace_all(text, replace.what, replace.with, work);
    }
    storage = std::move(changed);
    text = storage;
  }
  return text;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view with,
                        size_t& work) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at; (at = find_bytes(text, what, done)) != std::string_view::npos;
       done = at + what.size()) {
    require_at_most(out.size() + (at - done) + with.size(), work);
    out.append(text, done, at - done);
    out += with;
  }
  take(std::max(out.size() + (text.size() - done), text.size()), work);
  out.append(text, done);
  return out;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view with) {
  size_t work = SIZE_MAX;
  return replace_all(text, what, with, work);
}

}  // namespace nanovllm
