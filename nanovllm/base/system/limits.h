#pragma once

#include <functional>

namespace nanovllm {

/// Calls `body`, the program, which returns the exit status, so that low limits do no harm:
/// - On a stack of 8 MiB, a size that threads without a size of their own get, too. If the limit of
///   stacks (ulimit -s) is lower, `body` runs on another thread, which ends the program with that
///   status. Otherwise code that runs out of stack would be killed.
/// - With one heap for all threads, if the address space is limited (ulimit -v): each heap reserves
///   64 MiB of it.
/// Call it at the beginning of main(). Throws UserError if there is no memory for the stack.
int run_within_limits(const std::function<int()>& body);

}  // namespace nanovllm
