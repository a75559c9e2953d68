#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include "nanovllm/server/http/asio.h"

namespace nanovllm::server {

/// The threads that work on requests: JSON, templates, tokenizing. A lane is one or two threads for
/// requests of a range of sizes, so small work never waits for large work to end. If both run, the
/// operating system prefers the small work, because lanes of larger work have lower priority.
class WorkPool {
 public:
  WorkPool();
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;

  /// The lane for the work on a request or a response of this many bytes.
  asio::thread_pool& lane(size_t bytes);

 private:
  static constexpr size_t kNumLanes = 5;
  /// Lane i takes work of up to kSmallest << 2 * i bytes, and the last lane all larger work.
  static constexpr size_t kSmallest = size_t{64} << 10;
  std::array<asio::thread_pool, kNumLanes> lanes_;
};

/// Calls work() on a thread of the pool, and throws what it throws. It returns nothing, because GCC
/// 12 destroys results of coroutines twice in some expressions: work() sets a variable instead.
Task<> on_pool(asio::thread_pool& pool, std::function<void()> work);

}  // namespace nanovllm::server
