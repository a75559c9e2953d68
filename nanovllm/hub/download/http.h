#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "nanovllm/hub/settings.h"

namespace nanovllm::hub {

/// Thrown for a request that got no complete answer.
class NetworkError : public std::runtime_error {
 public:
  NetworkError(const std::string& what, bool is_unreachable)
      : std::runtime_error(what), is_unreachable_(is_unreachable) {}
  /// Whether there was no connection at all, so that trying again at once is of no use.
  bool is_unreachable() const { return is_unreachable_; }

 private:
  bool is_unreachable_;
};

/// Thrown if a request ends because `stop` was set.
struct Stopped {};

/// The answer of a server, without the contents.
struct HttpReply {
  int64_t status = 0;
  std::string error_code;              ///< the hub's name of an error: GatedRepo, RepoNotFound, ...
  std::optional<int64_t> retry_after;  ///< seconds
  bool cannot_resume = false;          ///< the server does not send the rest that was asked for

  bool is_ok() const { return status >= 200 && status < 300; }
};

/// Sends requests to the hub, one after the other, by libcurl: with its proxies, redirects and TLS.
/// The token goes only to the host of the endpoint, not to a host that it redirects to.
class HttpClient {
 public:
  /// `stop` ends a request within a second; it must exist as long as this object.
  HttpClient(const Settings& settings, const std::string& token, const std::atomic<bool>& stop);

  /// Reads a resource of the endpoint from byte `offset` on. `path` is the rest of its address, and
  /// `on_data` gets the contents in pieces if the answer is a success. An exception of `on_data`
  /// ends the request and is thrown again. Throws NetworkError or Stopped, and std::runtime_error
  /// if trying again is of no use.
  HttpReply get(const std::string& path, uint64_t offset,
                const std::function<void(std::string_view)>& on_data);

 private:
  struct Transfer;
  const Settings& settings_;
  std::string token_;
  const std::atomic<bool>& stop_;
};

/// A text as a part of an address. Slashes are kept if `keep_slashes` is set.
std::string url_part(std::string_view text, bool keep_slashes);

}  // namespace nanovllm::hub
