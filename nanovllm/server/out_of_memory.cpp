#include "nanovllm/server/out_of_memory.h"

#include <malloc.h>

#include <new>
#include <thread>

namespace nanovllm::server {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kTick{1}, kPause{100};
thread_local milliseconds patience{1000};
thread_local Clock::time_point begin, last;  // times of the calls for one allocation

/// Called by operator new until an allocation succeeds or this throws.
void wait_or_throw() {
  const auto now = Clock::now();
  if (now - last > kPause) begin = now;
  last = now;
  if (now - begin >= patience) throw std::bad_alloc();
  std::this_thread::sleep_for(kTick);
}

}  // namespace

void wait_for_memory() {
  // By default each thread has an arena of its own, and memory that is freed there helps no other
  // thread.
  ::mallopt(M_ARENA_MAX, 2);
  std::set_new_handler(wait_or_throw);
}

void set_patience(milliseconds most) { patience = most; }

}  // namespace nanovllm::server
