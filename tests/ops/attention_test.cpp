#include "nanovllm/ops/cpu/attention.h"
#include "nanovllm/ops/cpu/cpu_backend.h"
#include "nanovllm/ops/cpu/machine/parallel.h"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/ops/matrix.h"

namespace nanovllm::cpu {
namespace {

struct Sequence {
  int32_t num_tokens;  // new tokens
  int32_t context;
};

struct Shape {
  int64_t head_dim = 64;
  int64_t num_kv_heads = 2;
  int64_t group = 2;
  int64_t block_size = 16;
  DType dtype = DType::kF32;
  bool e4m3 = false;  // the cache
};

float load(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  const uint16_t x = static_cast<const uint16_t*>(data)[i];
  return dtype == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x);
}

void store(void* data, DType dtype, int64_t i, float x) {
  if (dtype == DType::kF32) static_cast<float*>(data)[i] = x;
  else static_cast<uint16_t*>(data)[i] = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

/// A different number for each element of q, k and v of each sequence, which does not depend on the
/// step or the block.
float element(uint64_t kind, uint64_t seq, uint64_t position, uint64_t head, uint64_t d) {
  uint64_t x = ((((kind * 1009 + seq) * 100003 + position) * 131 + head) * 1031 + d) + 1;
  x ^= x >> 31;
  x *= 0x9e3779b97f4a7c15;
  x ^= x >> 29;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 32;
  return static_cast<float>(x & 0xffffff) / 0x800000 - 1;
}

/// The scale of a key (kind 1) or value (kind 2) in a cache of e4m3; elements are at most 1.
float scale_of(uint64_t kind, uint64_t seq, uint64_t position, uint64_t head) {
  return 0.003f * (2 + element(kind + 2, seq, position, head, 0));
}

/// A batch over a KV cache in which all unused positions are NaN, also those in blocks that are
/// used. Blocks are assigned in a shuffled order.
class Problem {
 public:
  Problem(const Shape& shape, std::vector<Sequence> seqs, std::vector<int32_t> names = {})
      : shape_(shape), seqs_(std::move(seqs)), names_(std::move(names)) {
    const auto num_seqs = static_cast<int64_t>(seqs_.size());
    if (names_.empty()) {
      names_.resize(seqs_.size());
      std::iota(names_.begin(), names_.end(), 0);
    }
    int64_t num_blocks = 1, max_blocks = 0;
    starts_ = {0};
    for (const Sequence& s : seqs_) {
      const int64_t blocks = (s.context + shape.block_size - 1) / shape.block_size;
      num_blocks += blocks;
      max_blocks = std::max(max_blocks, blocks);
      starts_.push_back(starts_.back() + s.num_tokens);
      contexts_.push_back(s.context);
    }
    const size_t size = dtype_size(shape.dtype);
    kv_ = {.data = nullptr,
           .dtype = shape.e4m3 ? DType::kE4M3 : shape.dtype,
           .num_layers = 2,
           .num_blocks = num_blocks,
           .block_size = shape.block_size,
           .num_kv_heads = shape.num_kv_heads,
           .head_dim = shape.head_dim};
    cache_.assign(kv_.block_bytes() * static_cast<size_t>(num_blocks), 0xff);  // NaN
    kv_.data = cache_.data();

    std::vector<int32_t> order(static_cast<size_t>(num_blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    tables_.assign(static_cast<size_t>(num_seqs * max_blocks), -1);
    size_t next = 0;
    for (int64_t s = 0; s < num_seqs; ++s) {
      for (int64_t p = 0; p < seqs_[s].context; ++p) {
        int32_t& block = tables_[s * max_blocks + p / shape.block_size];
        if (block < 0) block = order[next++];
        for (int64_t h = 0; h < shape.num_kv_heads; ++h)
          for (int64_t value = 0; value < 2; ++value)
            store_key(kv_entry(kv_, kLayer, block, value, h), p, 1 + value, names_[s], h);
      }
    }
    const int64_t heads = shape.num_kv_heads * shape.group;
    const int64_t columns = (heads + 2 * shape.num_kv_heads) * shape.head_dim;
    const int64_t num_tokens = starts_.back();
    qkv_.assign(static_cast<size_t>(num_tokens * columns) * size, 0xff);  // NaN in k and v
    out_.assign(static_cast<size_t>(num_tokens * heads * shape.head_dim) * size, 0xff);
    for (int64_t s = 0; s < num_seqs; ++s)
      for (int64_t i = 0; i < seqs_[s].num_tokens; ++i)
        for (int64_t h = 0; h < heads; ++h)
          for (int64_t d = 0; d < shape.head_dim; ++d)
            store(qkv_.data(), shape.dtype, (starts_[s] + i) * columns + h * shape.head_dim + d,
                  2 * element(0, names_[s], position(s, i), h, d));
    args_ = {.out = Tensor(out_.data(), shape.dtype, num_tokens, heads * shape.head_dim),
             .qkv = Tensor(qkv_.data(), shape.dtype, num_tokens, columns),
             .num_heads = heads,
             .scale = 2.0f / std::sqrt(static_cast<float>(shape.head_dim)),
             .layer = kLayer};
    step_.token_ids.resize(static_cast<size_t>(num_tokens));
    step_.rows.resize(static_cast<size_t>(num_seqs));
    step_.cu_seqlens_q = Tensor(starts_.data(), DType::kI32, num_seqs + 1);
    step_.context_lens = Tensor(contexts_.data(), DType::kI32, num_seqs);
    rows_.resize(static_cast<size_t>(num_seqs));
    std::iota(rows_.begin(), rows_.end(), 0);
    step_.seq_slots = Tensor(rows_.data(), DType::kI32, num_seqs);
    kv_.block_tables = Tensor(tables_.data(), DType::kI32, num_seqs, max_blocks);
  }

  Problem(Problem&&) = default;  // moves the memory of the tensors too

  void run(Isa isa) { run(isa, isa); }
  void run(Isa isa, Isa prompt_isa) {
    std::fill(out_.begin(), out_.end(), 0xff);
    attention(args_, kv_, step_, isa, prompt_isa);
  }
  void run(Backend& backend) {
    std::fill(out_.begin(), out_.end(), 0xff);
    backend.attention(args_, kv_, step_);
  }

  /// The output of a new token as bytes.
  std::string output(int64_t seq, int64_t token) const {
    const size_t row = out_.size() / static_cast<size_t>(starts_.back());
    const size_t at = static_cast<size_t>(starts_[seq] + token) * row;
    return {reinterpret_cast<const char*>(out_.data()) + at, row};
  }

  /// softmax(q k^T scale) v in double precision, from the same rounded operands: [T, heads,
  /// head_dim].
  std::vector<double> reference() const {
    std::vector<double> out;
    for (size_t s = 0; s < seqs_.size(); ++s) {
      const auto keys = rounded_heads(1, s), values = rounded_heads(2, s);
      for (int64_t i = 0; i < seqs_[s].num_tokens; ++i)
        for (int64_t h = 0; h < args_.num_heads; ++h) {
          const int64_t at = h / shape_.group * seqs_[s].context * shape_.head_dim;
          const auto row = reference_row(s, position(s, i), h, &keys[at], &values[at]);
          out.insert(out.end(), row.begin(), row.end());
        }
    }
    return out;
  }

  void expect_near(const std::vector<double>& want, Isa isa) const {
    const bool has_pairs = isa >= Isa::kAvx512Bf16 && shape_.dtype == DType::kBF16 && !shape_.e4m3;
    const double precision = shape_.dtype == DType::kF32    ? 2e-6
                             : shape_.dtype == DType::kBF16 ? 0.004
                                                            : 0.0005;
    for (size_t i = 0; i < want.size(); ++i) {
      const double error =
          std::abs(load(out_.data(), shape_.dtype, static_cast<int64_t>(i)) - want[i]);
      // Where two keys are multiplied at once, the weights of values, which are at most 1, are
      // rounded to bfloat16, by at most 1/512. The errors of many keys mostly cancel.
      const int64_t token = static_cast<int64_t>(i) / (args_.num_heads * shape_.head_dim);
      const int64_t seq = std::ranges::upper_bound(starts_, token) - starts_.begin() - 1;
      const auto keys = static_cast<double>(position(seq, token - starts_[seq]) + 1);
      const double of_weights = has_pairs ? std::min(1.0, 6 / std::sqrt(keys)) / 512 : 0;
      // A negated comparison, so that NaN fails.
      if (!(error <= 2e-6 + of_weights + precision * std::abs(want[i])))
        FAIL() << "head row " << i / shape_.head_dim << " dimension " << i % shape_.head_dim
               << ": off by " << error << " from " << want[i];
    }
  }

 private:
  static constexpr int64_t kLayer = 1;

  /// Stores the key (kind 1) or value (kind 2) of this position in an entry of the cache.
  void store_key(char* entry, int64_t p, uint64_t kind, uint64_t name, int64_t head) const {
    const int64_t row = p % shape_.block_size;
    char* const to = kv_key(kv_, entry, row);
    const float scale = scale_of(kind, name, p, head);
    if (shape_.e4m3) *kv_key_scale(kv_, entry, row) = scale;
    for (int64_t d = 0; d < shape_.head_dim; ++d) {
      const float x = element(kind, name, p, head, d);
      if (shape_.e4m3) to[d] = static_cast<char>(f32_to_e4m3(x / scale));
      else store(to, shape_.dtype, d, x);
    }
  }
  int64_t position(int64_t seq, int64_t token) const {
    return seqs_[seq].context - seqs_[seq].num_tokens + token;
  }
  double rounded(float x) const {
    uint32_t memory = 0;
    nanovllm::cpu::store(&memory, shape_.dtype, 0, x);
    return load(&memory, shape_.dtype, 0);
  }
  /// K (kind 1) or V (kind 2) of a sequence: [kv_heads, context, head_dim].
  std::vector<double> rounded_heads(uint64_t kind, size_t seq) const {
    std::vector<double> x;
    for (int64_t h = 0; h < shape_.num_kv_heads; ++h)
      for (int64_t p = 0; p < seqs_[seq].context; ++p)
        for (int64_t d = 0; d < shape_.head_dim; ++d) {
          const float value = element(kind, names_[seq], p, h, d);
          const float scale = scale_of(kind, names_[seq], p, h);
          x.push_back(shape_.e4m3 ? double{e4m3_to_f32(f32_to_e4m3(value / scale))} * scale
                                  : rounded(value));
        }
    return x;
  }
  std::vector<double> reference_row(size_t seq, int64_t position, int64_t head, const double* keys,
                                    const double* values) const {
    const int64_t n = shape_.head_dim;
    std::vector<double> q(n), weights(position + 1), out(n);
    for (int64_t d = 0; d < n; ++d) q[d] = rounded(2 * element(0, names_[seq], position, head, d));
    for (int64_t j = 0; j <= position; ++j)
      weights[j] = std::inner_product(q.begin(), q.end(), keys + j * n, 0.0) * args_.scale;
    const double top = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& w : weights) total += w = std::exp(w - top);
    for (int64_t j = 0; j <= position; ++j)
      for (int64_t d = 0; d < n; ++d) out[d] += weights[j] / total * values[j * n + d];
    return out;
  }

  Shape shape_;
  std::vector<Sequence> seqs_;
  std::vector<int32_t> names_;
  KvCache kv_;
  Step step_;
  AttentionArgs args_;
  std::vector<uint8_t> cache_, qkv_, out_;
  std::vector<int32_t> starts_, contexts_, tables_, slots_, rows_;
};

class AttentionGrid : public testing::TestWithParam<std::tuple<DType, int64_t, bool>> {};

TEST_P(AttentionGrid, EqualsNaiveReferenceOnEveryInstructionSet) {
  const auto [dtype, head_dim, e4m3] = GetParam();
  for (const int64_t group : {1, 2, 3, 5, 7, 8, 16}) {
    const auto problem_of = [&](int64_t block_size) {
      return Problem({.head_dim = head_dim,
                      .num_kv_heads = group == 1 ? 3 : 1,
                      .group = group,
                      .block_size = block_size,
                      .dtype = dtype,
                      .e4m3 = e4m3},
                     {{1, 1}, {1, 17}, {33, 33}, {19, 270}, {1, 256}, {3, 258}});
    };
    const std::vector<double> want = problem_of(16).reference();
    for (const int64_t block_size : {16, 64, 1024}) {
      Problem problem = problem_of(block_size);
      for (const Isa isa : isas()) {
        SCOPED_TRACE(testing::Message()
                     << isa_name(isa) << " group " << group << " block size " << block_size);
        problem.run(isa);
        problem.expect_near(want, isa);
        if (HasFatalFailure()) return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGrid,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::Values(8, 32, 64, 80, 96, 128, 256),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) + "_head_dim_" +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) ? "_e4m3" : "");
                         });

TEST(Attention, LongContexts) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    Problem problem(
        {.head_dim = 64, .num_kv_heads = 1, .group = 4, .block_size = 64, .dtype = dtype},
        {{1, 3001}, {20, 2065}});
    const std::vector<double> want = problem.reference();
    for (const Isa isa : isas()) {
      SCOPED_TRACE(testing::Message() << isa_name(isa) << " " << dtype_name(dtype));
      problem.run(isa);
      problem.expect_near(want, isa);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Attention, MoreQueryHeadsThanATileHasRows) {
  Problem problem({.head_dim = 16, .num_kv_heads = 1, .group = 101}, {{3, 40}, {1, 600}});
  problem.run(best_isa());
  problem.expect_near(problem.reference(), best_isa());
}

TEST(Attention, PromptsHaveAnInstructionSetOfTheirOwn) {
  Problem problem({.head_dim = 64, .num_kv_heads = 2, .group = 3, .dtype = DType::kBF16},
                  {{1, 300}, {40, 300}});
  for (const Isa isa : isas()) {
    problem.run(Isa::kPlain);
    const std::string single = problem.output(0, 0), plain_prompt = problem.output(1, 39);
    problem.run(isa);
    const std::string prompt = problem.output(1, 39);
    // So that the comparison below can fail.
    if (isa == Isa::kAmx) {
      EXPECT_NE(prompt, plain_prompt);
    }
    problem.run(Isa::kPlain, isa);
    EXPECT_EQ(problem.output(0, 0), single) << isa_name(isa);
    EXPECT_EQ(problem.output(1, 39), prompt) << isa_name(isa);
  }
}

// Tiles give the bits of AVX512-BF16's vectors, so this tells only whether products are bfloat16's.
TEST(Attention, WithAmxTheBackendMultipliesPromptsInBfloat16) {
  if (best_isa() != Isa::kAmx) GTEST_SKIP() << "this machine has no AMX";
  Problem problem({.head_dim = 64, .num_kv_heads = 2, .group = 3, .dtype = DType::kBF16},
                  {{40, 300}});
  problem.run(Isa::kAvx512Vnni);
  const std::string in_vectors = problem.output(0, 39);
  problem.run(Isa::kAmx);
  const std::string in_tiles = problem.output(0, 39);
  ASSERT_NE(in_tiles, in_vectors);
  CpuBackend backend(1);
  problem.run(backend);
  EXPECT_EQ(problem.output(0, 39), in_tiles);
}

/// The output bits of a token depend only on its query, its keys and values, and the instruction
/// set.
class AttentionBits : public testing::TestWithParam<std::tuple<DType, bool>> {
 protected:
  static constexpr int32_t kContext = 1100;
  Shape shape(int64_t block_size) const {
    return {.head_dim = 64,
            .num_kv_heads = 2,
            .group = 3,
            .block_size = block_size,
            .dtype = std::get<0>(GetParam()),
            .e4m3 = std::get<1>(GetParam())};
  }
  /// Output of every position of sequence 7 computed in one step on one thread.
  std::vector<std::string> whole(Isa isa) const {
    cpu::set_num_threads(1);
    Problem problem(shape(64), {{kContext, kContext}}, {7});
    problem.run(isa);
    std::vector<std::string> rows;
    for (int32_t i = 0; i < kContext; ++i) rows.push_back(problem.output(0, i));
    return rows;
  }
  void TearDown() override { cpu::set_num_threads(threads_); }
  const int threads_ = cpu::num_threads();
};

TEST_P(AttentionBits, DoNotDependOnChunks) {
  for (const Isa isa : isas()) {
    const std::vector<std::string> want = whole(isa);
    for (const int32_t chunk : {1, 2, 17, 256, 300})
      for (int32_t end = kContext; end > 0; end -= std::max(chunk, 97)) {
        Problem problem(shape(16), {{std::min(chunk, end), end}}, {7});
        problem.run(isa);
        for (int32_t i = 0; i < std::min(chunk, end); ++i)
          ASSERT_EQ(problem.output(0, i), want[end - std::min(chunk, end) + i])
              << isa_name(isa) << " chunk " << chunk << " ending at " << end << " token " << i;
      }
  }
}

TEST_P(AttentionBits, DoNotDependOnBatchBlockSizeOrThreads) {
  for (const Isa isa : isas()) {
    const std::vector<std::string> want = whole(isa);
    for (const int64_t block_size : {16, 48, 256, 1024})
      for (const int threads : {1, 2, 3, 16}) {
        cpu::set_num_threads(threads);
        Problem alone(shape(block_size), {{1, kContext}}, {7});
        alone.run(isa);
        EXPECT_EQ(alone.output(0, 0), want[kContext - 1]);
        Problem batch(shape(block_size), {{1, 5}, {200, 700}, {1, kContext}, {4, 4}, {1, 513}},
                      {1, 7, 7, 3, 7});
        batch.run(isa);
        for (int32_t i = 0; i < 200; ++i) ASSERT_EQ(batch.output(1, i), want[500 + i]);
        EXPECT_EQ(batch.output(2, 0), want[kContext - 1]);
        EXPECT_EQ(batch.output(4, 0), want[512]);
      }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, AttentionBits,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16, DType::kF16),
                                          testing::Bool()),
                         [](const auto& info) {
                           return std::string(dtype_name(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "_e4m3" : "");
                         });

}  // namespace
}  // namespace nanovllm::cpu
