#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace nanovllm::hub {

/// Waits between the tries of a request that has failed: each time twice as long as before, or as
/// long as the server asks for.
class Backoff {
 public:
  /// `note` gets a line for the user before each wait.
  Backoff(const std::atomic<bool>& stop, std::function<void(std::string)> note);

  /// Throws std::runtime_error that begins with `why` if the request has failed too often, or if
  /// the server asks for a wait that is too long; Stopped if `stop` is set meanwhile.
  void wait(const std::string& why, std::optional<int64_t> retry_after);
  /// The request has made progress, so earlier failures do not count.
  void reset() { num_failures_ = 0; }

 private:
  const std::atomic<bool>& stop_;
  std::function<void(std::string)> note_;
  int num_failures_ = 0;
};

}  // namespace nanovllm::hub
