#include "sums_over_gpus.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "nanovllm/base/error.h"
#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/communicator.h"
#include "nanovllm/ops/cuda/collectives/collectives.h"
#include "nanovllm/ops/cuda/gemm/gemm_args.h"
#include "nanovllm/ops/cuda_library.h"

namespace {

using namespace nanovllm;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// What one rank contributes to element i. Sums over a few ranks are exact in bfloat16.
float addend(int rank, int64_t i) { return static_cast<float>((i * 7 + rank * 3) % 11 - 5); }

/// Adds a GEMM to a residual, summed over the ranks, and norms it. Returns whether the sum and the
/// norm are right. A rank's addend is addend(rank, column) in all rows. The old residual are rows
/// of the embedding, of which each rank has kShareUnit rows. The buffers stay alive in `buffers`,
/// since peers map some of them.
bool sum_norm_is_right(Backend& gpu, int rank, int world, int64_t rows, int64_t hidden,
                       bool may_share, std::vector<Buffer>& buffers) {
  constexpr int64_t kWidth = 16;
  const auto tensor = [&](int64_t m, int64_t n, DType dtype, auto value_of) {
    std::vector<float> floats(static_cast<size_t>(m * n));
    std::vector<uint16_t> halves(floats.size());
    for (size_t i = 0; i < floats.size(); ++i)
      halves[i] = f32_to_bf16(floats[i] = value_of(static_cast<int64_t>(i)));
    Tensor t(nullptr, dtype, m, n);
    buffers.push_back(gpu.allocate(t.bytes()));
    t.data = buffers.back().get();
    gpu.upload(t.data, dtype == DType::kF32 ? static_cast<void*>(floats.data()) : halves.data(),
               t.bytes());
    return t;
  };
  const auto in_column_0 = [](int64_t i, float value) { return i % kWidth == 0 ? value : 0; };
  std::vector<uint16_t> host(static_cast<size_t>(hidden * kWidth));
  for (size_t i = 0; i < host.size(); ++i)
    host[i] = f32_to_bf16(
        in_column_0(static_cast<int64_t>(i), addend(rank, static_cast<int64_t>(i) / kWidth)));
  const Tensor part(host.data(), DType::kBF16, hidden, kWidth);
  const WeightPtr w = gpu.pack(part, DType::kBF16);
  const Tensor x = tensor(rows, kWidth, DType::kBF16, [&](int64_t i) { return in_column_0(i, 1); });
  const int64_t vocab = kShareUnit * world;
  const auto embedding = [&](int64_t id, int64_t column) {
    return addend(world, id * hidden + column);
  };
  const auto old = [&](int64_t i) { return embedding(i / hidden % vocab, i % hidden); };
  host.resize(static_cast<size_t>(kShareUnit * hidden));
  for (int64_t i = 0; i < kShareUnit * hidden; ++i)
    host[static_cast<size_t>(i)] =
        f32_to_bf16(embedding(kShareUnit * rank + i / hidden, i % hidden));
  const Tensor table(host.data(), DType::kBF16, kShareUnit, hidden);
  const WeightPtr embed = gpu.pack(table, DType::kBF16);
  const auto ids = [&](auto id_of) {
    std::vector<int32_t> words(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i)
      words[static_cast<size_t>(i)] = static_cast<int32_t>(id_of(i));
    buffers.push_back(gpu.allocate(words.size() * 4));
    gpu.upload(buffers.back().get(), words.data(), words.size() * 4);
    return Tensor(buffers.back().get(), DType::kI32, rows);
  };
  const Tensor backwards = ids([&](int64_t i) { return rows - 1 - i; });
  const auto nothing = [](int64_t) { return 0; };
  const Tensor residual = tensor(rows, hidden, DType::kBF16, nothing);
  const Tensor out = tensor(rows, hidden, DType::kBF16, nothing);
  const Tensor scratch = tensor(rows, hidden, DType::kBF16, nothing);
  Norm norm = {tensor(1, hidden, DType::kF32, [](int64_t i) { return 1 + addend(1, i) / 8; }),
               1e-6f};
  norm.weight = Tensor(norm.weight.data, DType::kF32, hidden);
  Residual stream(residual, out);
  gpu.embed(stream.whole(), *embed, ids([&](int64_t i) { return i % vocab; }));
  gpu.add_matmul(stream, x, *w);
  gpu.norm(stream, norm);
  const Tensor gathered = tensor(rows, hidden, DType::kBF16, nothing);
  Residual gathered_stream(gathered, scratch);
  gpu.gather_rows(gathered_stream, stream, backwards);
  // A second residual, without a norm after the addition.
  Residual other(tensor(rows, hidden, DType::kBF16, old), scratch);
  const Tensor whole = tensor(rows, hidden, DType::kBF16, nothing);
  Residual whole_stream(whole, scratch);
  gpu.add_matmul(other, x, *w);
  gpu.gather_rows(whole_stream, other, backwards);
  // A third residual: after its norm each rank may have only its own rows, then it is finished.
  Residual finished(tensor(rows, hidden, DType::kBF16, old), scratch);
  gpu.add_matmul(finished, x, *w);
  gpu.norm(finished, norm);
  const Tensor after_norm = gpu.finish(finished);
  const auto values = [&](const Tensor& t) {
    std::vector<uint16_t> v(static_cast<size_t>(t.size()));
    gpu.download(v.data(), t.data, t.bytes());
    return v;
  };
  const std::vector<uint16_t> sums = values(residual), normed = values(out), all = values(gathered),
                              others = values(whole), finished_sums = values(after_norm);
  // If the ranks share the rows, a rank only has the sums of its own rows.
  const bool shares =
      residual.bytes() > cuda::kLl128Bytes || (may_share && rows > cuda::kFewTokens);
  const Range own = shares ? share(rows, 1, {rank, world}) : Range{0, rows};
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> want(static_cast<size_t>(hidden));
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      double& sum = want[static_cast<size_t>(i)];
      sum = embedding(row % vocab, i);
      for (int r = 0; r < world; ++r) sum += addend(r, i);
      squares += sum * sum;
    }
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-6);
    for (int64_t i = 0; i < hidden; ++i) {
      const auto at = static_cast<size_t>(row * hidden + i);
      const auto backwards_at = static_cast<size_t>((rows - 1 - row) * hidden + i);
      const double sum = want[static_cast<size_t>(i)], y = sum * scale * (1 + addend(1, i) / 8);
      const bool is_summed = own.first <= row && row < own.first + own.count;
      if ((is_summed && bf16_to_f32(sums[at]) != sum) || bf16_to_f32(all[backwards_at]) != sum ||
          bf16_to_f32(others[backwards_at]) != sum || bf16_to_f32(finished_sums[at]) != sum ||
          std::abs(bf16_to_f32(normed[at]) - y) > 0.01 * std::abs(y))
        return false;
    }
  }
  return true;
}

/// Runs rank `rank` of `world`. Returns 0 if all sums are right.
int all_reduce_rank(void* memory, int rank, int world) {
  using SumNorm = CudaKernels::SumNorm;
  Communicator ranks(memory, {rank, world});
  auto gpu = make_cuda_backend({}, {rank, world});
  gpu->connect(ranks, kShareUnit * world);
  std::vector<Buffer> buffers;
  bool right = true;
  for (int64_t bytes = 1024; bytes <= 256 << 20; bytes *= bytes < 1 << 20 ? 2 : 4) {
    const int64_t count = bytes / 2, calls = bytes <= 1 << 20 ? 100 : 10;
    const Buffer buffer = gpu->allocate(static_cast<size_t>(bytes));
    const Tensor x(buffer.get(), DType::kBF16, count);
    std::vector<uint16_t> host(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) host[static_cast<size_t>(i)] = f32_to_bf16(addend(rank, i));
    gpu->upload(x.data, host.data(), host.size() * 2);
    gpu->all_reduce(x);
    gpu->download(host.data(), x.data, host.size() * 2);
    for (int64_t i = 0; i < count; ++i) {
      float sum = 0;
      for (int r = 0; r < world; ++r) sum += addend(r, i);
      right = right && bf16_to_f32(host[static_cast<size_t>(i)]) == sum;
    }
    std::ranges::fill(host, 0);
    gpu->upload(x.data, host.data(), host.size() * 2);
    const auto enqueue = [&] {
      for (int64_t i = 0; i < calls; ++i) gpu->all_reduce(x);
    };
    for (int i = 0; i < 3; ++i) gpu->replay(bytes, enqueue);
    std::vector<double> times;
    for (int round = 0; round < 5; ++round) {
      uint16_t word = 0;
      gpu->download(&word, x.data, 2);
      ranks.barrier();
      const double start = now();
      gpu->replay(bytes, enqueue);
      gpu->download(&word, x.data, 2);
      times.push_back((now() - start) / static_cast<double>(calls));
    }
    std::ranges::sort(times);
    if (rank == 0)
      fmt::print("all_reduce of {} KiB over {} GPUs: {:.1f} us{}\n", bytes / 1024, world,
                 times[2] * 1e6, right ? "" : ", WRONG");
  }
  // The algorithm that the backend chooses for a sum with its norm, then each of them.
  const std::optional<SumNorm> algorithms[] = {
      {}, SumNorm::kSeparate, SumNorm::kOneShot, SumNorm::kTwoShot};
  for (const std::optional<SumNorm>& algorithm : algorithms) {
    if (algorithm) {
      gpu = make_cuda_backend({.sum_norm = algorithm}, {rank, world});
      gpu->connect(ranks, kShareUnit * world);
    }
    const bool may_share = !algorithm || *algorithm == SumNorm::kTwoShot;
    for (const auto& [rows, hidden] : {std::pair<int64_t, int64_t>{1, 4096},
                                       {40, 64},
                                       {17, 8192},
                                       {256, 4096},
                                       {100, 8192},
                                       {600, 1024},
                                       {1203, 4096}}) {
      const bool is_right = sum_norm_is_right(*gpu, rank, world, rows, hidden, may_share, buffers);
      if (!is_right)
        fmt::print("rank {}: a sum of [{}, {}] with its norm, algorithm {}: WRONG\n", rank, rows,
                   hidden, algorithm ? static_cast<int>(*algorithm) : -1);
      right = right && is_right;
    }
  }
  gpu.reset();
  ranks.barrier();  // after it, no rank maps the buffers any more
  return right ? 0 : 1;
}

}  // namespace

// CUDA does not work after a fork, so the parent process must not call it.
int sums_over_gpus(int world) {
  void* const memory = mmap(nullptr, Communicator::bytes(), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  std::vector<pid_t> children;
  for (int rank = 0; rank < world; ++rank) {
    const pid_t child = fork();
    if (child != 0) {
      children.push_back(child);
      continue;
    }
    int status = 1;
    try {
      status = all_reduce_rank(memory, rank, world);
    } catch (const UserError& e) {
      if (rank == 0) fmt::print("{}\n", e.what());
      status = 77;
    } catch (const std::exception& e) {
      fmt::print("rank {}: {}\n", rank, e.what());
    }
    _exit(status);
  }
  int worst = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 1);
  }
  return worst;
}
