#include "nanovllm/ops/cpu/gemm/gemm.h"

#include <algorithm>
#include <chrono>

#include "nanovllm/base/ceil_div.h"
#include "nanovllm/base/check.h"
#include "nanovllm/ops/cpu/gemm/pack_quantized.h"
#include "nanovllm/ops/cpu/kernels/elementwise.h"
#include "nanovllm/ops/cpu/kernels/gemm.h"
#include "nanovllm/ops/cpu/kernels/int_gemm.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"
#include "nanovllm/ops/cpu/rows.h"

namespace nanovllm::cpu {

namespace {

/// A GEMM of at most this work runs on one thread, because several threads cost more than they
/// save. The work is the number of multiply-adds, plus four for each byte of weights. One thread
/// needs about 2 microseconds for this much.
constexpr int64_t kParallelWork = 1'000'000;

/// The seconds that a bfloat16 GEMM takes whose operands are in the L1 cache. They are zeros, which
/// take as long as other values.
double gemm_seconds(const GemmKernels& kernels) {
  constexpr int64_t kRows = 24, kPanels = 2, kK = 128;
  const int64_t n = kPanels * kernels.panel_columns;
  const std::vector<uint16_t> x(kRows * kK), w(static_cast<size_t>(n * kK));
  std::vector<float> out(static_cast<size_t>(kRows * n)), scratch(kGemmScratchFloats);
  const GemmCall call{.x = x.data(),
                      .x_stride = kK,
                      .panels = w.data(),
                      .panel_bytes = kernels.panel_columns * kK * 2,
                      .out = out.data(),
                      .out_stride = n,
                      .out_f32 = true,
                      .n = n,
                      .k = kK};
  double best = 1;
  for (int i = 0; i < 12; ++i) {
    const auto start = std::chrono::steady_clock::now();
    kernels.task(call, 0, kRows, 0, kPanels, scratch.data());
    best = std::min(
        best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

/// The instruction set for products of bfloat16. Outside of AMX, Intel's processors multiply
/// bfloat16 at half of their speed in float32 and AMD's at twice, so it is measured once, which
/// takes 0.1 ms.
Isa choose_bf16_isa(Isa isa) {
  if (isa < Isa::kAvx512Bf16) return isa;
  static const Isa faster = gemm_seconds(kernels_for(Isa::kAvx512Vnni, DType::kBF16).gemm) <
                                    gemm_seconds(kernels_for(isa, DType::kBF16).gemm)
                                ? Isa::kAvx512Vnni
                                : isa;
  return faster;
}

}  // namespace

Gemm::Gemm(Isa isa, int threads) : Gemm(isa, threads, choose_bf16_isa(isa)) {}

Gemm::Gemm(Isa isa, int threads, Isa bf16_isa)
    : isa_(isa),
      bf16_isa_(bf16_isa),
      threads_(threads),
      scratch_(allocate(static_cast<size_t>(threads * kGemmScratchFloats) * sizeof(float))) {}

const GemmKernel& Gemm::kernel(const PackedWeight& w, int64_t rows) const {
  if (w.format == QuantizedFormat::kE4M3) return kernels_for(isa_, w.dtype).gemm.e4m3;
  if (w.format == QuantizedFormat::kInt8) return kernels_for(isa_, w.dtype).int_gemm.int8;
  if (w.format == QuantizedFormat::kInt4) return kernels_for(isa_, w.dtype).int_gemm.int4;
  const GemmKernel& of_many = kernels_for(isa_, w.dtype).gemm.many_rows;
  if (rows >= kFewestManyRows && of_many.task != nullptr) return of_many;
  return kernels_for(w.dtype == DType::kBF16 ? bf16_isa_ : isa_, w.dtype).gemm;
}

GemmCall Gemm::make_call(const PackedWeight& w, Tensor x, Tensor out) {
  GemmCall call{.x = x.data,
                .x_stride = x.row_stride,
                .panels = w.panels.get(),
                .panel_bytes = w.panel_bytes,
                .out = out.data,
                .out_stride = out.row_stride,
                .out_f32 = out.dtype == DType::kF32,
                .n = w.n,
                .k = w.k,
                .group = w.group,
                .group_bytes = w.group_bytes};
  if (!w.format || w.format == QuantizedFormat::kE4M3) return call;
  const IntGemmKernels& kernels = kernels_for(isa_, w.dtype).int_gemm;
  const bool is_large = w.group % kLargeIntGroup == 0 && w.k % kLargeIntGroup == 0;
  call.x_group = is_large ? kLargeIntGroup : kIntGroup;
  const int64_t row_bytes = ceil_div(w.k, call.x_group) * (call.x_group * kernels.x_value_bytes +
                                                           2 * static_cast<int64_t>(sizeof(float)));
  call.x_stride = ceil_div(row_bytes, 64) * 64;
  auto* const rows = static_cast<char*>(
      quantized_x_.reserve(static_cast<size_t>((x.shape[0] + kMoreRows) * call.x_stride)));
  call.x = rows;
  const int32_t* const order = w.order.empty() ? nullptr : w.order.data();
  for_each_row(x.shape[0], w.k, [&](int64_t i) {
    kernels.quantize_row(rows + i * call.x_stride, row_of(x, i), order, w.k, call.x_group);
  });
  return call;
}

std::shared_ptr<const PackedWeight> Gemm::pack(std::span<const WeightRows> all_parts, DType dtype,
                                               int64_t num_experts) const {
  const size_t num_parts = all_parts.size() / static_cast<size_t>(num_experts);
  check(num_parts > 0, "a weight without parts");
  if (dtype != DType::kF32)
    if (auto quantized =
            pack_quantized(all_parts, dtype, num_experts,
                           kernels_for(isa_, dtype).int_gemm.int8.panel_columns, threads_))
      return quantized;
  auto w = std::make_shared<PackedWeight>();
  w->dtype = dtype;
  w->num_experts = num_experts;
  w->k = all_parts[0].num_columns();
  for (size_t i = 0; i < all_parts.size(); ++i) {
    check(all_parts[i].num_columns() == w->k, "parts of a weight differ in their columns");
    check(all_parts[i].num_rows() == all_parts[i % num_parts].num_rows(), "experts differ in rows");
    if (i < num_parts) w->n += all_parts[i].num_rows();
  }
  const Kernels kernels = kernels_for(isa_, dtype);
  const int64_t columns = kernels.gemm.panel_columns;
  const int64_t panels = ceil_div(w->n, columns);
  const int64_t padded_k = dtype == DType::kBF16 ? ceil_div(w->k, 32) * 32 : w->k;
  const int64_t row_bytes = w->k * static_cast<int64_t>(dtype_size(dtype));
  w->panel_bytes = columns * padded_k * static_cast<int64_t>(dtype_size(dtype));
  w->expert_bytes = panels * w->panel_bytes;
  w->panels = allocate_weight(static_cast<size_t>(num_experts * w->expert_bytes));
  parallel_for_once(threads_, num_experts * panels, [&](int64_t task, int) {
    const int64_t panel = task % panels;
    const auto parts = all_parts.subspan(static_cast<size_t>(task / panels) * num_parts, num_parts);
    // A panel's rows are read just before they are packed, into memory that stays in the cache.
    std::vector<char> rows(static_cast<size_t>(columns * row_bytes)), other_dtype;
    int64_t part_first = 0;
    for (const WeightRows& part : parts) {
      const int64_t first = std::max(panel * columns, part_first);
      const int64_t count = std::min((panel + 1) * columns, part_first + part.num_rows()) - first;
      if (count > 0) {
        char* const to = rows.data() + (first - panel * columns) * row_bytes;
        if (part.dtype() == dtype) {
          part.read(first - part_first, count, to);
        } else {
          other_dtype.resize(static_cast<size_t>(count) * part.row_bytes());
          part.read(first - part_first, count, other_dtype.data());
          kernels.elementwise.convert[table_index(part.dtype())](to, other_dtype.data(),
                                                                 count * w->k);
        }
      }
      part_first += part.num_rows();
    }
    kernels.gemm.pack(static_cast<char*>(w->panels.get()) + task * w->panel_bytes, rows.data(),
                      w->k);
  });
  return w;
}

void Gemm::matmul(Tensor out, Tensor x, const PackedWeight& w, Tensor bias) {
  const int64_t m = x.shape[0];
  check(x.rank == 2 && x.shape[1] == w.k && x.dtype == w.dtype,
        "matmul: x is {} [{}, {}], the weight {} [{}, {}]", dtype_name(x.dtype), m, x.shape[1],
        dtype_name(w.dtype), w.n, w.k);
  check(out.rank == 2 && out.shape[0] == m && out.shape[1] == w.n &&
            (out.dtype == w.dtype || out.dtype == DType::kF32),
        "matmul: out is {} [{}, {}], not [{}, {}]", dtype_name(out.dtype), out.shape[0],
        out.shape[1], m, w.n);
  check(!bias || (bias.dtype == DType::kF32 && bias.size() == w.n),
        "matmul: bias has the wrong shape");

  GemmCall call = make_call(w, x, out);
  call.bias = bias.as<const float>();
  const GemmKernel& kernels = kernel(w, m);
  const int64_t panels = ceil_div(w.n, kernels.panel_columns);
  const int64_t tiles = ceil_div(m, kernels.tile_rows);
  const int64_t row_parts = ceil_div(tiles, kGemmTaskRows / kernels.tile_rows);
  const bool parallel = threads_ > 1 && 4 * panels * w.panel_bytes + w.n * w.k * m > kParallelWork;
  // If the rows are one part, each thread gets two runs of panels. The second run follows the first
  // in memory, so that its weights are prefetched, if the threads are equally fast. If there are
  // several parts, tasks are smaller, and tasks that share panels follow each other.
  int64_t column_parts = parallel ? 2 * threads_ : 1;
  if (row_parts > 1)
    column_parts = std::max(ceil_div(panels * kernels.panel_columns, kGemmGroupColumns),
                            ceil_div(column_parts, row_parts));
  column_parts = std::min(column_parts, panels);
  const int64_t tasks = row_parts * column_parts;
  const bool two_runs = row_parts == 1 && column_parts == 2 * threads_;
  const auto run = [&](int64_t task, int thread) {
    const int64_t r = task % row_parts;
    const int64_t c = two_runs ? task % threads_ * 2 + task / threads_ : task / row_parts;
    const auto row = [&](int64_t part) {
      return std::min(m, tiles * part / row_parts * kernels.tile_rows);
    };
    kernels.task(call, row(r), row(r + 1), panels * c / column_parts,
                 panels * (c + 1) / column_parts,
                 static_cast<float*>(scratch_.get()) + thread * kGemmScratchFloats);
  };
  if (parallel) parallel_for(tasks, run);
  else
    for (int64_t i = 0; i < tasks; ++i) run(i, 0);
}

void Gemm::expert_matmul(Tensor out, Tensor x, const PackedWeight& w, const Routing& routing,
                         Tensor rows) {
  const int64_t num_entries = out.shape[0];
  check(x.shape[1] == w.k && x.dtype == w.dtype && out.shape[1] == w.n && out.dtype == w.dtype &&
            routing.starts.size() == w.num_experts + 1 &&
            (rows ? rows.size() : x.shape[0]) == num_entries,
        "expert_matmul: wrong shapes");
  const GemmKernel& kernels = kernel(w, num_entries);
  const auto* starts = routing.starts.as<const int32_t>();
  const int64_t panels = ceil_div(w.n, kernels.panel_columns);
  const int64_t most_rows = kGemmTaskRows / kernels.tile_rows * kernels.tile_rows;
  int64_t num_row_parts = 0;
  for (int64_t e = 0; e < w.num_experts; ++e)
    num_row_parts += ceil_div(starts[e + 1] - starts[e], most_rows);
  // There are several tasks for each thread, since experts have unequal numbers of rows.
  const int64_t column_parts = std::min(panels, ceil_div(4 * threads_, num_row_parts));
  tasks_.clear();
  for (int64_t e = 0; e < w.num_experts; ++e) {
    const int64_t count = starts[e + 1] - starts[e], row_parts = ceil_div(count, most_rows);
    for (int64_t r = 0; r < row_parts; ++r)
      for (int64_t c = 0; c < column_parts; ++c)
        tasks_.push_back({e, starts[e] + r * most_rows,
                          starts[e] + std::min(count, (r + 1) * most_rows),
                          panels * c / column_parts, panels * (c + 1) / column_parts});
  }
  GemmCall first = make_call(w, x, out);
  first.rows = rows.as<const int32_t>();
  const auto run = [&](int64_t i, int thread) {
    const ExpertTask& task = tasks_[static_cast<size_t>(i)];
    GemmCall call = first;
    call.panels = static_cast<const char*>(w.panels.get()) + task.expert * w.expert_bytes;
    kernel(w, task.row_end - task.row)
        .task(call, task.row, task.row_end, task.panel, task.panel_end,
              static_cast<float*>(scratch_.get()) + thread * kGemmScratchFloats);
  };
  const auto num_tasks = static_cast<int64_t>(tasks_.size());
  if (threads_ > 1 && 4 * w.expert_bytes * num_row_parts + w.n * w.k * num_entries > kParallelWork)
    return parallel_for(num_tasks, run);
  for (int64_t i = 0; i < num_tasks; ++i) run(i, 0);
}

}  // namespace nanovllm::cpu
