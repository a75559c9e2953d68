#pragma once

#include <functional>

namespace nanovllm {

/// Calls `body`, the program, which returns the exit status, so that low limits do no harm:
/// - It gets a stack of 8 MiB, and so do threads without a size of their own. If the limit of
/// stacks
///   (ulimit -s) is lower, `body` runs on another thread, which ends the program with that status,
///   because a program that runs out of stack is killed.
/// - All threads share one heap if the address space is limited (ulimit -v), because each heap
///   reserves 64 MiB of it.
/// Call it at the beginning of main(). Throws UserError if there is no memory for the stack.
int run_within_limits(const std::function<int()>& body);

}  // namespace nanovllm
