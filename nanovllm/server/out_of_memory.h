#pragma once

#include <chrono>

// The threads of a server share the memory of the process. For a moment, a request that is being
// read may take all memory that is left, until it fails and frees everything it holds. Threads that
// work for all clients wait for that moment instead of failing as well.
namespace nanovllm::server {

/// Prepares the process: its threads wait before an allocation fails, and they can use memory that
/// others have freed.
void wait_for_memory();

/// The longest time that the calling thread waits for memory; 0 for work on a single request.
/// Other threads wait for a second.
void set_patience(std::chrono::milliseconds patience);

}  // namespace nanovllm::server
