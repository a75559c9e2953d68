// Measures what several ranks cost on the CPU: sending a step (from the call until every other rank
// has its copy and rank 0 knows that) and the all-reduce. Each rank is a process that is pinned to
// one CPU core, as it would be pinned to a socket.
//   ranks_bench [RANKS] [BYTES_OF_A_STEP] [STEPS]   2, 29000 and 5000 by default
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "nanovllm/base/system/machine.h"
#include "nanovllm/runtime/ranks/worker_processes.h"

namespace {

using namespace nanovllm;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSums = 200;
constexpr int64_t kSumElements[] = {2048, 16384, 131072, 1 << 20};

double micros_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double part(std::vector<double>& values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

void keep_to_processor(int rank) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(rank % num_usable_cpus()), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

/// Every rank calls this; rank 0 prints.
void sum_all(Communicator& ranks) {
  for (const int64_t elements : kSumElements) {
    std::vector<uint16_t> x(static_cast<size_t>(elements), f32_to_bf16(1e-3f));
    std::vector<double> micros;
    for (int64_t i = 0; i < kSums; ++i) {
      const auto start = Clock::now();
      ranks.all_reduce({x.data(), DType::kBF16, elements});
      micros.push_back(micros_since(start));
    }
    if (ranks.rank().index == 0)
      std::printf("all-reduce of %7ld bytes: median %.1f us\n", 2 * elements, part(micros, 0.5));
  }
}

int work(int rank, int world, int memory_fd, int parent_fd) {
  end_with_parent(parent_fd, memory_fd);
  RankMemory memory(FileDescriptor(memory_fd), {rank, world});
  keep_to_processor(rank);
  sum_all(memory.ranks());
  while (memory.channel().receive(-1) == StepChannel::Received::kInput) memory.channel().done();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 9 && std::string(argv[1]) == "worker")  // started by WorkerProcesses
    return work(std::atoi(argv[4]), std::atoi(argv[2]), std::atoi(argv[6]), std::atoi(argv[8]));
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  const size_t bytes = argc > 2 ? static_cast<size_t>(std::atoll(argv[2])) : 29'000;
  const int64_t num_steps = argc > 3 ? std::atoll(argv[3]) : 5000;
  WorkerProcesses workers(std::filesystem::read_symlink("/proc/self/exe").string(),
                          {"worker", std::to_string(world)}, world, /*step_timeout=*/60);
  keep_to_processor(0);
  sum_all(workers.ranks());
  workers.set_ready();
  StepArrays arrays;
  arrays.token_ids.resize((bytes - sizeof(StepInput::Header)) / sizeof(int32_t));
  std::vector<std::byte> buffer;
  // After a step a rank polls for the next one for some 25 us, then it sleeps.
  for (const int pause : {0, 10, 1000}) {
    std::vector<double> sent, held;
    for (int64_t i = 0; i < num_steps / (pause > 100 ? 5 : 1); ++i) {
      const StepInput step = arrays.write(static_cast<uint64_t>(i), buffer);
      const auto paused = Clock::now();
      while (micros_since(paused) < pause)
        if (pause > 100) std::this_thread::sleep_for(std::chrono::microseconds(pause));
      const auto start = Clock::now();
      workers.channel().send(step);
      sent.push_back(micros_since(start));
      while (workers.channel().is_busy()) __builtin_ia32_pause();
      held.push_back(micros_since(start));
    }
    std::printf(
        "%d ranks, steps of %zu bytes, %4d us apart: rank 0 spends %.1f us, all have it after %.1f "
        "us (medians; 90%% %.1f)\n",
        world, bytes, pause, part(sent, 0.5), part(held, 0.5), part(held, 0.9));
  }
}
