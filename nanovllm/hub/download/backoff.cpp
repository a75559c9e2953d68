#include "nanovllm/hub/download/backoff.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <utility>

#include "nanovllm/hub/download/http.h"

namespace nanovllm::hub {

namespace {

constexpr int kMaxTries = 5;
constexpr int64_t kMaxRetryAfter = 300;
constexpr std::chrono::milliseconds kFirstWait{500}, kBetweenLooks{50};

}  // namespace

Backoff::Backoff(const std::atomic<bool>& stop, std::function<void(std::string)> note)
    : stop_(stop), note_(std::move(note)) {}

void Backoff::wait(const std::string& why, std::optional<int64_t> retry_after) {
  constexpr const char* kKept = "what was downloaded is kept, and the same command continues";
  if (retry_after.value_or(0) > kMaxRetryAfter)
    throw std::runtime_error(
        fmt::format("{}; try again after {} seconds: {}", why, *retry_after, kKept));
  if (++num_failures_ == kMaxTries)
    throw std::runtime_error(
        fmt::format("{}; gave up after {} tries; try again later: {}", why, kMaxTries, kKept));
  std::chrono::milliseconds left = kFirstWait * (1 << (num_failures_ - 1));
  if (retry_after) left = std::chrono::seconds(*retry_after);
  note_(fmt::format("{}; trying again in {:.1f} s", why, static_cast<double>(left.count()) / 1000));
  for (; left.count() > 0; left -= kBetweenLooks) {
    if (stop_) throw Stopped();
    std::this_thread::sleep_for(std::min(left, kBetweenLooks));
  }
}

}  // namespace nanovllm::hub
