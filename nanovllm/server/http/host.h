#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nanovllm::server {

struct HttpRequest;

/// The part of a URL that names a server, "NAME" or "NAME:PORT".
struct Authority {
  /// The name in lower case, without the brackets of an IPv6 address and without a dot at its end.
  std::string name;
  std::string port;  ///< digits, or empty
  bool operator==(const Authority&) const = default;
};

/// Parses an authority. Nothing if it is malformed, for example because it has a user's name.
std::optional<Authority> parse_authority(std::string_view text);

/// Whether a name always stands for this machine: localhost and its subdomains, 127.0.0.0/8, ::1.
bool is_loopback(std::string_view name);

/// The names that clients may use for the server. A page whose name first resolves to its own
/// server and then to this one (DNS rebinding) could otherwise read answers as its own.
class AllowedHosts {
 public:
  /// `names` are allowed besides the names of the loopback interface; "*" allows all. On a server
  /// that does not listen on the loopback interface (`is_local` is false), addresses are allowed
  /// too, because no DNS name is an address, and without `names` everything is allowed. Throws
  /// UserError for a text that is no name or address.
  AllowedHosts(const std::vector<std::string>& names, bool is_local);

  /// Throws ApiError for a request to a server of another name. A request without a name, which
  /// only HTTP/1.0 allows, passes, because no browser sends one.
  void check(const HttpRequest& request) const;

 private:
  std::vector<std::string> names_;
  bool is_local_;
  bool allows_all_;
};

}  // namespace nanovllm::server
