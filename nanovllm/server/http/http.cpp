#include "nanovllm/server/http/http.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <charconv>

namespace nanovllm::server {

std::string_view HttpRequest::header(std::string_view name) const {
  const auto at = std::ranges::find_if(
      headers, [&](const auto& h) { return equal_in_any_case(h.first, name); });
  return at == headers.end() ? std::string_view() : at->second;
}

bool equal_in_any_case(std::string_view a, std::string_view b) {
  return boost::beast::iequals({a.data(), a.size()}, {b.data(), b.size()});
}

std::string url_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool is_escape = text[i] == '%' && text.size() - i > 2 &&
                           std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    decoded += is_escape ? static_cast<char>(byte) : text[i];
    if (is_escape) i += 2;
  }
  return decoded;
}

}  // namespace nanovllm::server
