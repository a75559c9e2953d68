#include "nanovllm/ops/cpu/gemm.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/threads.h"
#include "nanovllm/ops/cpu/memory.h"
#include "nanovllm/ops/cpu/parallel.h"

namespace nanovllm::cpu {

namespace {

const GemmKernels& kernels_for(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return plain::kGemmKernels;
    case Isa::kAvx2:
      return avx2::kGemmKernels;
    case Isa::kAvx512:
      return avx512::kGemmKernels;
    case Isa::kAvx512Bf16:
      return avx512bf16::kGemmKernels;
  }
  return plain::kGemmKernels;
}

int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Position of a float dtype in the kernels' tables.
size_t index_of(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16,
        "no matrix products in {}", dtype_name(dtype));
  return static_cast<size_t>(dtype);
}

/// Multiply-adds, and four for each byte of weights, up to which a parallel region costs more than
/// it saves: about 2 microseconds of one thread.
constexpr int64_t kParallelWork = 1'000'000;
/// Of a weight, that a thread reads at once.
constexpr int64_t kReadBytes = int64_t{1} << 20;

}  // namespace

Gemm::Gemm(Isa isa, int threads)
    : kernels_(kernels_for(isa)),
      threads_(threads),
      scratch_(allocate(static_cast<size_t>(threads * kGemmScratchFloats) * sizeof(float))) {
  if (isa == Isa::kAvx512Bf16) onednn_.emplace();
}

void Gemm::for_each(int64_t num_tasks, const std::function<void(int64_t)>& work) const {
  std::atomic<int64_t> next = 0;
  std::exception_ptr error;
  std::mutex mutex;  // of `error`
  const auto take_tasks = [&] {
    try {
      for (int64_t task; (task = next++) < num_tasks;) work(task);
    } catch (...) {
      next = num_tasks;
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int64_t i = 1; i < std::min<int64_t>(threads_, num_tasks); ++i)
      helpers.push_back(start_thread("a thread that packs weights", take_tasks));
    take_tasks();
  }
  if (error) std::rethrow_exception(error);
}

std::shared_ptr<const PackedWeight> Gemm::pack(std::span<const WeightRows> parts, DType dtype,
                                               unsigned use) const {
  auto w = std::make_shared<PackedWeight>();
  w->dtype = dtype;
  check(!parts.empty(), "a weight without parts");
  w->k = parts[0].num_columns();
  for (const WeightRows& part : parts) {
    check(part.num_columns() == w->k, "parts of a weight differ in their columns");
    w->n += part.num_rows();
  }
  if (use & kForEmbedding) read_rows(*w, parts);
  if (!(use & kForMatmul)) return w;
  const std::vector<WeightRows> from_rows(w->rows.begin(), w->rows.end());
  pack_panels(*w, from_rows.empty() ? parts : from_rows);
  return w;
}

void Gemm::read_rows(PackedWeight& w, std::span<const WeightRows> parts) const {
  for (const WeightRows& part : parts) {
    const int64_t n = part.num_rows();
    w.row_memory.push_back(allocate(static_cast<size_t>(n) * part.row_bytes()));
    const Tensor& rows = w.rows.emplace_back(w.row_memory.back().get(), part.dtype(), n, w.k);
    const int64_t piece = std::max<int64_t>(kReadBytes / static_cast<int64_t>(part.row_bytes()), 1);
    for_each(div_up(n, piece), [&](int64_t task) {
      const int64_t first = task * piece, count = std::min(piece, n - first);
      part.read(first, count, rows.rows(first, count).data);
    });
  }
}

void Gemm::pack_panels(PackedWeight& w, std::span<const WeightRows> parts) const {
  const int64_t columns = kernels_.panel_columns;
  const int64_t panels = div_up(w.n, columns);
  const int64_t padded_k = w.dtype == DType::kBF16 ? div_up(w.k, 32) * 32 : w.k;
  const auto pack_panel = kernels_.pack[index_of(w.dtype)];
  w.panel_bytes = columns * padded_k * static_cast<int64_t>(dtype_size(w.dtype));
  w.panels = allocate(static_cast<size_t>(panels * w.panel_bytes));
  for_each(panels, [&](int64_t p) {
    // A panel's rows are read just before they are packed, into memory that stays in the cache.
    const auto memory = std::make_unique_for_overwrite<float[]>(static_cast<size_t>(columns * w.k));
    std::vector<GemmRow> rows(static_cast<size_t>(columns));
    int64_t part_first = 0;
    for (const WeightRows& part : parts) {
      const int64_t first = std::max(p * columns, part_first);
      const int64_t end = std::min((p + 1) * columns, part_first + part.num_rows());
      if (first < end) {
        float* const to = memory.get() + (first - p * columns) * w.k;
        part.read(first - part_first, end - first, to);
        for (int64_t i = first; i < end; ++i)
          rows[static_cast<size_t>(i - p * columns)] = {
              reinterpret_cast<const char*>(to) +
                  (i - first) * static_cast<int64_t>(part.row_bytes()),
              static_cast<int>(index_of(part.dtype()))};
      }
      part_first += part.num_rows();
    }
    pack_panel(static_cast<char*>(w.panels.get()) + p * w.panel_bytes, rows.data(), w.k);
  });
}

void Gemm::matmul(Tensor out, Tensor x, const PackedWeight& w, Tensor bias) {
  const int64_t m = x.shape[0];
  check(w.panels != nullptr, "this weight was packed for embedding alone");
  check(x.rank == 2 && x.shape[1] == w.k && x.dtype == w.dtype,
        "matmul: x is {} [{}, {}], the weight {} [{}, {}]", dtype_name(x.dtype), m, x.shape[1],
        dtype_name(w.dtype), w.n, w.k);
  check(out.rank == 2 && out.shape[0] == m && out.shape[1] == w.n &&
            (out.dtype == w.dtype || out.dtype == DType::kF32),
        "matmul: out is {} [{}, {}], not [{}, {}]", dtype_name(out.dtype), out.shape[0],
        out.shape[1], m, w.n);
  check(!bias || (bias.dtype == DType::kF32 && bias.size() == w.n),
        "matmul: bias has the wrong shape");

  const GemmCall call{.x = x.data,
                      .x_stride = x.row_stride,
                      .panels = w.panels.get(),
                      .panel_bytes = w.panel_bytes,
                      .bias = bias.as<const float>(),
                      .out = out.data,
                      .out_stride = out.row_stride,
                      .out_f32 = out.dtype == DType::kF32,
                      .n = w.n,
                      .k = w.k};
  if (onednn_ && w.dtype == DType::kBF16 && m >= onednn_->min_rows()) return onednn_->run(call, m);

  const int64_t panels = div_up(w.n, kernels_.panel_columns);
  const int64_t tiles = div_up(m, kernels_.tile_rows);
  const int64_t row_parts = div_up(tiles, kGemmTaskRows / kernels_.tile_rows);
  const auto size = static_cast<int64_t>(dtype_size(w.dtype));
  const bool parallel = threads_ > 1 && w.n * w.k * (4 * size + m) > kParallelWork;
  // One part of the rows: two runs of panels for each thread. Else smaller tasks, the ones that
  // share panels together.
  int64_t column_parts = parallel ? 2 * threads_ : 1;
  if (row_parts > 1)
    column_parts = std::max(div_up(panels * kernels_.panel_columns, kGemmGroupColumns),
                            div_up(column_parts, row_parts));
  column_parts = std::min(column_parts, panels);
  const int64_t tasks = row_parts * column_parts;
  const auto run = [&](int64_t task, int thread) {
    const int64_t r = task % row_parts, c = task / row_parts;
    const auto row = [&](int64_t part) {
      return std::min(m, tiles * part / row_parts * kernels_.tile_rows);
    };
    kernels_.task[index_of(w.dtype)](
        call, row(r), row(r + 1), panels * c / column_parts, panels * (c + 1) / column_parts,
        static_cast<float*>(scratch_.get()) + thread * kGemmScratchFloats);
  };
  if (parallel) parallel_for(tasks, run);
  else
    for (int64_t i = 0; i < tasks; ++i) run(i, 0);
}

}  // namespace nanovllm::cpu
