#include "nanovllm/ops/cpu/cpu_backend.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/machine.h"
#include "nanovllm/ops/cpu/attention.h"
#include "nanovllm/ops/cpu/elementwise.h"
#include "nanovllm/ops/cpu/experts.h"
#include "nanovllm/ops/cpu/machine/memory.h"
#include "nanovllm/ops/cpu/machine/parallel.h"
#include "nanovllm/ops/cpu/sampler.h"

namespace nanovllm::cpu {

namespace {

int choose_threads(int64_t asked) {
  return asked > 0 ? static_cast<int>(std::min<int64_t>(asked, 4096)) : num_usable_cpus();
}

const PackedWeight& packed(const Weight& w) { return static_cast<const PackedWeight&>(w); }

}  // namespace

CpuBackend::CpuBackend(int64_t threads, Isa isa)
    : isa_(isa), threads_(choose_threads(threads)), gemm_(isa, threads_) {}

std::string CpuBackend::describe() const {
  return fmt::format("CPU, {}, {} thread{}", isa_name(isa_), threads_, threads_ == 1 ? "" : "s");
}

// -- ranks

void CpuBackend::connect(Communicator& ranks, int64_t vocab_size) {
  ranks_ = &ranks;
  vocab_size_ = vocab_size;
  vocab_ = share(vocab_size, kShareUnit, ranks.rank());
}

void CpuBackend::all_reduce(Tensor x) {
  if (ranks_ != nullptr) ranks_->all_reduce(x);
}

template <class Draw>
void CpuBackend::for_own_rows(Tensor logits, Draw draw) {
  const int64_t num_rows = logits.shape[0];
  if (ranks_ == nullptr) return draw(logits, 0);
  const int64_t most = Communicator::max_rows(vocab_size_);
  for (int64_t first = 0; first < num_rows; first += most) {
    const Tensor part = logits.rows(first, std::min(most, num_rows - first));
    const Tensor whole = ranks_->join_columns(part, vocab_.first, vocab_size_);
    const Range own = share(part.shape[0], 1, ranks_->rank());
    if (own.count > 0)
      draw(whole.rows(own.first, own.count), static_cast<size_t>(first + own.first));
  }
}

// -- memory

Memory CpuBackend::memory() const {
  return {.total = host_memory(), .free = available_host_memory()};
}

Buffer CpuBackend::allocate(size_t bytes) { return cpu::allocate(bytes); }

void CpuBackend::upload(void* device, const void* host, size_t bytes) {
  if (bytes > 0) std::memcpy(device, host, bytes);
}

void CpuBackend::download(void* host, const void* device, size_t bytes) {
  if (bytes > 0) std::memcpy(host, device, bytes);
}

void CpuBackend::begin_step(const KvCache& kv) {
  derive(step_, kv, derived_);
  for (size_t i = 0; i < step_.samples.size(); ++i)
    if (SampleRow& row = step_.samples[i]; row.last_token == kTokenInFlight)
      row.last_token = derived_.input_ids[static_cast<size_t>(derived_.output_rows[i])];
}

WeightPtr CpuBackend::pack(std::span<const WeightRows> parts, DType dtype) {
  if (ranks_ != nullptr) ++ranks_->progress();
  return gemm_.pack(parts, dtype);
}

WeightPtr CpuBackend::pack_experts(std::span<const WeightRows> parts, int64_t num_experts,
                                   DType dtype) {
  if (ranks_ != nullptr) ++ranks_->progress();
  return gemm_.pack(parts, dtype, num_experts);
}

template <class T>
void CpuBackend::join_ranks(std::span<T> values) {
  // Floats are added as integers: the bits of a float plus zeros are the float.
  static_assert(sizeof(T) % sizeof(int32_t) == 0);
  all_reduce(
      {values.data(), DType::kI32, static_cast<int64_t>(values.size_bytes() / sizeof(int32_t))});
}

// Helpers belong to the calling thread, and the one that runs the steps did not make this backend:
// so each operation that may use threads sets their number.

void CpuBackend::embed(Tensor out, const Weight& table, Tensor ids) {
  set_num_threads(threads_);
  if (ranks_ == nullptr) return cpu::embed(out, packed(table), ids, isa_);
  // Rows of other ranks are zero here.
  own_ids_.clear();
  for (int64_t i = 0; i < ids.shape[0]; ++i) {
    const int64_t id = ids.as<const int32_t>()[i] - vocab_.first;
    own_ids_.push_back(0 <= id && id < vocab_.count ? static_cast<int32_t>(id) : kElsewhere);
  }
  cpu::embed(out, packed(table), {own_ids_.data(), DType::kI32, ids.shape[0]}, isa_);
  all_reduce(out);
}

void CpuBackend::rms_norm(Tensor out, Tensor x, const Norm& norm) {
  set_num_threads(threads_);
  cpu::rms_norm(out, x, norm, isa_);
}

void CpuBackend::sum_squares(Tensor squares, Tensor qkv, const WholeNorms& norms) {
  set_num_threads(threads_);
  cpu::sum_squares(squares, qkv, norms, isa_);
}

void CpuBackend::scale_by_squares(Tensor qkv, Tensor squares, const WholeNorms& norms) {
  set_num_threads(threads_);
  cpu::scale_by_squares(qkv, squares, norms, isa_);
}

void CpuBackend::add(Tensor sum, Tensor x) {
  set_num_threads(threads_);
  cpu::add(sum, x, isa_);
}

void CpuBackend::gather_rows(Tensor out, Tensor x, Tensor rows) { cpu::gather_rows(out, x, rows); }

void CpuBackend::matmul(Tensor out, Tensor x, const Weight& w, Tensor bias) {
  set_num_threads(threads_);
  gemm_.matmul(out, x, packed(w), bias);
}

void CpuBackend::rope_and_store(const RopeStoreArgs& args, const KvCache& kv, const Step& step) {
  set_num_threads(threads_);
  cpu::rope_and_store(args, kv, step, isa_);
}

void CpuBackend::attention(const AttentionArgs& args, const KvCache& kv, const Step& step) {
  set_num_threads(threads_);
  const bool is_bf16 = args.qkv.dtype == DType::kBF16;
  // For one token, AMX's tiles take longer to prepare than they save.
  const Isa isa = is_bf16 ? std::min(gemm_.bf16_isa(), Isa::kAvx512Bf16) : isa_;
  cpu::attention(args, kv, step, isa, is_bf16 && isa_ == Isa::kAmx ? isa_ : isa);
}

void CpuBackend::silu_mul(Tensor out, Tensor gate_up) {
  set_num_threads(threads_);
  cpu::silu_mul(out, gate_up, isa_);
}

void CpuBackend::route(const Routing& routing, bool normalize) {
  set_num_threads(threads_);
  cpu::route(routing, normalize);
}

void CpuBackend::expert_matmul(Tensor out, Tensor x, const Weight& w, const Routing& routing,
                               Tensor rows) {
  set_num_threads(threads_);
  gemm_.expert_matmul(out, x, packed(w), routing, rows);
}

void CpuBackend::combine_experts(Tensor out, Tensor x, const Routing& routing) {
  set_num_threads(threads_);
  cpu::combine_experts(out, x, routing, isa_);
}

void CpuBackend::copy_blocks(const KvCache& kv, std::span<const BlockCopy> copies) {
  cpu::copy_blocks(kv, copies);
}

void CpuBackend::sample(Tensor logits, const Step& step) {
  if (!step.has_late_rows()) draw(logits, step);
}

void CpuBackend::finish_sample(Tensor logits) {
  if (step_.has_late_rows()) draw(logits, step_);
}

void CpuBackend::draw(Tensor logits, const Step& step) {
  set_num_threads(threads_);
  const std::span<const SampleRow> samples = step.samples;
  const size_t num_rows = samples.size();
  Drawn& drawn = drawn_.emplace_back();
  drawn.token_ids.resize(num_rows);
  drawn.status.resize(num_rows);
  for_own_rows(logits, [&](Tensor rows, size_t first) {
    const auto count = static_cast<size_t>(rows.shape[0]);
    cpu::sample(rows, samples.subspan(first, count),
                std::span(drawn.token_ids).subspan(first, count),
                std::span(drawn.status).subspan(first, count), isa_);
  });
  join_ranks(std::span(drawn.token_ids));
  join_ranks(std::span(drawn.status));
  for (size_t i = 0; i < num_rows; ++i)
    step.last_tokens.as<int32_t>()[step.outputs[i].slot] = drawn.token_ids[i];
  // One call handles neighbouring rows with the same number of log-probabilities.
  const auto wanted = [&](size_t i) {
    return drawn.status[i] == RowStatus::kOk ? samples[i].num_logprobs : 0;
  };
  for (size_t i = 0; i < num_rows;) {
    size_t end = i + 1;
    while (end < num_rows && wanted(end) == wanted(i)) ++end;
    if (wanted(i) > 0)
      append_logprobs(logits.rows(static_cast<int64_t>(i), static_cast<int64_t>(end - i)),
                      std::span(drawn.token_ids).subspan(i, end - i), wanted(i) - 1,
                      samples.subspan(i, step.processed_logprobs ? end - i : 0), drawn.logprobs);
    i = end;
  }
}

void CpuBackend::fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                               std::vector<Logprob>& logprobs) {
  check(!drawn_.empty(), "no step whose tokens are not fetched");
  const Drawn drawn = std::move(drawn_.front());
  drawn_.pop_front();
  check(token_ids.size() == drawn.token_ids.size() && status.size() == drawn.status.size(),
        "{} token ids and {} states fetched of {} rows", token_ids.size(), status.size(),
        drawn.token_ids.size());
  std::ranges::copy(drawn.token_ids, token_ids.begin());
  std::ranges::copy(drawn.status, status.begin());
  logprobs.insert(logprobs.end(), drawn.logprobs.begin(), drawn.logprobs.end());
}

void CpuBackend::token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                                std::vector<Logprob>& entries) {
  set_num_threads(threads_);
  append_logprobs(logits, targets, k, {}, entries);
}

void CpuBackend::append_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                                 std::span<const SampleRow> processed,
                                 std::vector<Logprob>& entries) {
  const size_t before = entries.size(), width = static_cast<size_t>(k) + 1;
  entries.resize(before + targets.size() * width);
  const std::span<Logprob> added = std::span(entries).subspan(before);
  for_own_rows(logits, [&](Tensor rows, size_t first) {
    const auto count = static_cast<size_t>(rows.shape[0]);
    cpu::token_logprobs(rows, targets.subspan(first, count), k,
                        added.subspan(first * width, count * width),
                        processed.empty() ? processed : processed.subspan(first, count), isa_);
  });
  join_ranks(added);
}

}  // namespace nanovllm::cpu

namespace nanovllm {

std::unique_ptr<Backend> make_cpu_backend(int64_t threads) {
  return std::make_unique<cpu::CpuBackend>(threads);
}

}  // namespace nanovllm
