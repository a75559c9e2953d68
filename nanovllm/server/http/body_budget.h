#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace nanovllm::server {

/// Counts the bytes of the bodies of requests that are received or wait to be read, for each
/// client. Only bytes that have arrived count, so a client that announces a body and does not send
/// it takes nothing from others.
class BodyBudget {
 public:
  /// Whether `client` may hold `more` bytes than now. A client may hold at most `most_of_one`, and
  /// at most half of what all others leave of `most_of_all`. So even several clients that take as
  /// much as they can leave something for the next one.
  bool has_room(const std::string& client, size_t more, size_t most_of_one,
                size_t most_of_all) const {
    const auto found = of_client_.find(client);
    const size_t own = found == of_client_.end() ? 0 : found->second;
    const size_t others = std::min(total_ - own, most_of_all);
    const size_t most = std::min(most_of_one, (most_of_all - others) / 2);
    return own <= most && more <= most - own;
  }
  size_t total() const { return total_; }

 private:
  friend class BodyBytes;
  void change(const std::string& client, size_t from, size_t to) {
    total_ += to - from;
    const auto entry = of_client_.try_emplace(client).first;
    entry->second += to - from;
    if (entry->second == 0) of_client_.erase(entry);
  }

  size_t total_ = 0;
  std::unordered_map<std::string, size_t> of_client_;
};

/// The bytes of one body in a budget, until this object is destroyed.
class BodyBytes {
 public:
  BodyBytes() = default;
  BodyBytes(BodyBudget& budget, std::string client)
      : budget_(&budget), client_(std::move(client)) {}
  BodyBytes(BodyBytes&& other) noexcept { *this = std::move(other); }
  BodyBytes& operator=(BodyBytes&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(client_, other.client_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~BodyBytes() { set(0); }
  void set(size_t bytes) {
    if (budget_ != nullptr && bytes != bytes_) budget_->change(client_, bytes_, bytes);
    bytes_ = bytes;
  }

 private:
  BodyBudget* budget_ = nullptr;
  std::string client_;
  size_t bytes_ = 0;
};

}  // namespace nanovllm::server
