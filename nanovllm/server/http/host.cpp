#include "nanovllm/server/http/host.h"

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <cctype>

#include "nanovllm/base/check.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

namespace {

namespace ip = asio::ip;

/// An address in dotted or IPv6 form; nothing if the text is none.
std::optional<ip::address> address_of(std::string_view name) {
  error_code error;
  ip::address address = ip::make_address(std::string(name), error);
  if (error) return std::nullopt;
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  return address;
}

std::string in_lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  return lower;
}

bool is_port_digit(char c) { return c >= '0' && c <= '9'; }

/// The characters of a registered name (RFC 3986, 3.2.2).
bool is_name_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-._~%!$&'()*+,;=").find(c) != std::string_view::npos;
}

}  // namespace

std::optional<Authority> parse_authority(std::string_view text) {
  const bool is_ipv6 = text.starts_with('[');
  const size_t end = is_ipv6 ? text.find(']') : std::min(text.find(':'), text.size());
  if (end == std::string_view::npos) return std::nullopt;
  std::string_view name = text.substr(is_ipv6, end - is_ipv6);
  std::string_view port = text.substr(end + is_ipv6);
  if (!port.empty() && !port.starts_with(':')) return std::nullopt;
  port.remove_prefix(std::min<size_t>(port.size(), 1));
  if (!std::ranges::all_of(port, is_port_digit)) return std::nullopt;
  if (is_ipv6) {
    error_code error;
    const ip::address_v6 address = ip::make_address_v6(std::string(name), error);
    if (error || name.find('%') != name.npos) return std::nullopt;
    return Authority{address.to_string(), std::string(port)};
  }
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty() || !std::ranges::all_of(name, is_name_char)) return std::nullopt;
  return Authority{in_lower_case(name), std::string(port)};
}

bool is_loopback(std::string_view name) {
  if (name == "localhost" || name.ends_with(".localhost")) return true;
  const std::optional<ip::address> address = address_of(name);
  return address && address->is_loopback();
}

AllowedHosts::AllowedHosts(const std::vector<std::string>& names, bool is_local)
    : is_local_(is_local),
      allows_all_(std::ranges::count(names, "*") > 0 || (names.empty() && !is_local)) {
  for (const std::string& name : names) {
    if (name == "*") continue;
    const bool is_plain_ipv6 = name.find(':') != name.npos && address_of(name);
    const auto host = parse_authority(is_plain_ipv6 ? "[" + name + "]" : name);
    require(host && host->port.empty(),
            "allowed_hosts contains '{}'; it must have names or addresses without a port, or '*'",
            name);
    names_.push_back(host->name);
  }
}

void AllowedHosts::check(const HttpRequest& request) const {
  if (allows_all_ || !request.authority) return;
  const std::string& name = request.authority->name;
  if (is_loopback(name) || std::ranges::count(names_, name) > 0) return;
  if (!is_local_ && address_of(name)) return;
  throw ApiError::foreign_host(name);
}

}  // namespace nanovllm::server
