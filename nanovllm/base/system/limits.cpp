#include "nanovllm/base/system/limits.h"

#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace {

constexpr size_t kStackBytes = size_t{8} << 20;

void* run_body(void* body) { std::exit((*static_cast<const std::function<int()>*>(body))()); }

}  // namespace

int run_within_limits(const std::function<int()>& body) {
  pthread_attr_t attributes;
  ::pthread_attr_init(&attributes);
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  ::pthread_setattr_default_np(&attributes);
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    ::mallopt(M_ARENA_MAX, 1);
  const bool is_low = ::getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < kStackBytes;
  if (!is_low) {
    ::pthread_attr_destroy(&attributes);
    return body();
  }
  pthread_t thread{};
  std::function<int()> copy = body;
  const int error = ::pthread_create(&thread, &attributes, run_body, &copy);
  ::pthread_attr_destroy(&attributes);
  require(
      error == 0,
      "the limit of stacks is {} KiB (ulimit -s), and a thread with a stack of {} KiB cannot be "
      "started: {}; raise the limit",
      limit.rlim_cur >> 10, kStackBytes >> 10, std::strerror(error));
  // Signals are handled by the other thread.
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
  for (;;) ::pause();
}

}  // namespace nanovllm
