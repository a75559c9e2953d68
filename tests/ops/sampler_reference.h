#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "nanovllm/ops/backend.h"
#include "nanovllm/ops/cpu/kernels/sampler.h"

// A direct implementation of the sampler's definition in ops/sample_row.h, for the tests of every
// backend: it sorts all tokens and computes them one after another.
namespace nanovllm {

/// The Gumbel noise of one token.
inline float noise(const SampleRow& row, int32_t id) {
  uint64_t words[4] = {static_cast<uint64_t>(id) / 4, row.position, row.choice, 0};
  cpu::philox4x32_10(words, static_cast<uint32_t>(row.seed), static_cast<uint32_t>(row.seed >> 32),
                     [](uint64_t a, uint32_t b) { return (a & 0xffffffff) * b; });
  const double u = (static_cast<double>(words[id % 4] & 0xffffffff) + 0.5) / 4294967296.0;
  return static_cast<float>(-std::log(-std::log1p(-u)));
}

struct Reference {
  std::vector<int32_t> kept;  // best first; of a greedy row, all that are not masked
  std::vector<float> value;   // of every token
  int32_t token = 0;
  // how far the probability of the kept tokens, with or without the last one, is from top_p
  double top_p_margin = 1;
};

/// Draws a token from logits [vocab], of which at least one is finite and not masked. Each id is in
/// the vocabulary.
inline Reference reference(std::vector<float> logits, const SampleRow& row) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<TokenCount> counts(row.counts.begin(), row.counts.end());
  if (row.last_token != kNoToken) {
    const auto at = std::ranges::find(counts, row.last_token, &TokenCount::id);
    if (at == counts.end()) counts.push_back({row.last_token, 1});
    else ++at->in_answer;
  }
  for (const TokenCount& token : counts) {
    float& l = logits[token.id];
    l = l > 0 ? l / row.repetition_penalty : l * row.repetition_penalty;
    l -= row.frequency_penalty * static_cast<float>(token.in_answer);
    if (token.in_answer > 0) l -= row.presence_penalty;
  }
  for (const TokenBias& b : row.biases) logits[b.id] += b.bias;
  for (const int32_t id : row.masked_ids) logits[id] = -kInfinity;
  for (const MaskedAfter& masked : row.masked_after)
    if (masked.after == row.last_token) logits[masked.id] = -kInfinity;
  if (!row.allowed_ids.empty())
    for (size_t i = 0; i < logits.size(); ++i)
      if (!std::ranges::binary_search(row.allowed_ids, static_cast<int32_t>(i)))
        logits[i] = -kInfinity;
  Reference result;
  auto& [kept, value, token, top_p_margin] = result;
  value.resize(logits.size());
  const bool greedy = row.temperature < 1e-5f;
  for (size_t i = 0; i < logits.size(); ++i)
    value[i] = greedy ? logits[i] : logits[i] * (1 / row.temperature);
  for (size_t i = 0; i < value.size(); ++i)
    if (value[i] > -kInfinity) kept.push_back(static_cast<int32_t>(i));
  std::stable_sort(kept.begin(), kept.end(),
                   [&](int32_t a, int32_t b) { return value[a] > value[b]; });
  token = kept[0];
  if (greedy) return result;
  const float best = value[kept[0]];
  if (row.min_p > 0)
    std::erase_if(kept, [&](int32_t id) {
      return value[id] < static_cast<float>(best + std::log(static_cast<double>(row.min_p)));
    });
  if (row.top_k > 0 && kept.size() > static_cast<size_t>(row.top_k)) kept.resize(row.top_k);
  if (row.top_p < 1) {
    double total = 0, sum = 0;
    for (const int32_t id : kept) total += std::exp(double{value[id]} - best);
    size_t count = 0;
    while (count < kept.size()) {
      const double before = sum / total;
      sum += std::exp(double{value[kept[count++]]} - best);
      top_p_margin = std::min(std::abs(sum / total - row.top_p), std::abs(before - row.top_p));
      if (sum >= row.top_p * total) break;
    }
    kept.resize(count);
  }
  float best_score = -kInfinity;
  for (const int32_t id : kept) {
    const float score = value[id] + noise(row, id);
    if (score > best_score || (score == best_score && id < token)) {
      best_score = score;
      token = id;
    }
  }
  return result;
}

/// The log-probabilities of the distribution from which a row is drawn.
struct Processed {
  std::vector<int32_t> order;    // the tokens that can be drawn, the best first
  std::vector<double> logprobs;  // of every token
};

inline Processed processed_reference(const std::vector<float>& logits, const SampleRow& row) {
  const Reference drawn = reference(logits, row);
  Processed result = {drawn.kept, std::vector<double>(logits.size(), -INFINITY)};
  double total = 0;
  for (const int32_t id : drawn.kept)
    total += std::exp(double{drawn.value[id]} - drawn.value[drawn.kept[0]]);
  for (const int32_t id : drawn.kept)
    result.logprobs[id] = drawn.value[id] - drawn.value[drawn.kept[0]] - std::log(total);
  return result;
}

/// What Backend::token_logprobs returns for one row, computed in double.
struct LogprobsReference {
  std::vector<int32_t> order;  // every token, the best first
  double log_sum = 0;          // a token's log-probability is its logit minus this
  int32_t target_rank = 0;
};

inline LogprobsReference logprobs_reference(const std::vector<float>& logits, int32_t target) {
  LogprobsReference result;
  auto& order = result.order;
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double total = 0;
  for (const float x : logits) total += std::exp(double{x} - logits[order[0]]);
  result.log_sum = logits[order[0]] + std::log(total);
  result.target_rank =
      static_cast<int32_t>(std::find(order.begin(), order.end(), target) - order.begin()) + 1;
  return result;
}

inline std::vector<float> random_logits(int64_t vocab, float spread, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(static_cast<size_t>(vocab));
  for (float& x : logits) x = normal(random);
  return logits;
}

/// Rounds to multiples of `step`, so that there are many ties.
inline void round_to(std::vector<float>& logits, float step) {
  for (float& x : logits) x = std::round(x / step) * step;
}

/// The logits that are used with every combination of parameters.
struct SampleCase {
  const char* name;
  int64_t vocab;
  float spread;
  float step;  // if it is not 0, logits are multiples of it
};

inline constexpr SampleCase kSampleCases[] = {
    {"one_token", 1, 1, 0},        {"three_tokens", 3, 1, 0}, {"a_chunk", 64, 2, 0},
    {"a_chunk_and_one", 65, 2, 0}, {"small", 512, 3, 0},      {"ties", 1000, 2, 0.5f},
    {"all_equal", 1000, 1, 1000},  {"peaked", 5003, 8, 0},    {"flat", 20011, 0.1f, 0},
    {"large", 151936, 3, 0}};

/// Calls check(logits, row) for combinations of temperature, top_k, top_p and min_p, alternating
/// between masks, penalties, biases and allowed ids. There are fewer of them for a large
/// vocabulary.
template <class Check>
void for_each_sample_row(const SampleCase& c, Check&& check) {
  uint32_t number = 0;
  for (const float temperature : {0.0f, 1e-6f, 0.3f, 1.0f, 2.5f})
    for (const int32_t top_k : {0, 1, 5, 50, 700})
      for (const float top_p : {1.0f, 0.95f, 0.5f, 0.01f})
        for (const float min_p : {0.0f, 0.05f, 1.0f}) {
          if (c.vocab > 10000 && number % 3 != 0) {
            ++number;
            continue;
          }
          std::vector<float> logits = random_logits(c.vocab, c.spread, number);
          if (c.step != 0) round_to(logits, c.step);
          for (size_t i = 3; i < logits.size(); i += 11)
            logits[i] = -std::numeric_limits<float>::infinity();
          const auto vocab = static_cast<int32_t>(c.vocab);
          std::vector<int32_t> masked;
          if (number % 2 == 1)
            for (int32_t id = 1; id < vocab; id += 7) masked.push_back(id);
          std::vector<TokenCount> counts;
          std::vector<TokenBias> biases;
          std::vector<int32_t> allowed;
          if (number % 4 >= 2)
            for (int32_t id = 0; id < vocab; id += 3) {
              counts.push_back({id, id % 4});
              biases.push_back({vocab - 1 - id, static_cast<float>(id % 5) - 2.5f});
            }
          if (number % 8 == 5)
            for (int32_t id = 0; id < vocab; id += 2) allowed.push_back(id);
          // Of the tokens that may be the last one, two are in `counts` and one is not.
          const int32_t last = number % 5 < 3 ? kNoToken : static_cast<int32_t>(number % 7) % vocab;
          std::vector<MaskedAfter> masked_after;
          for (int32_t id = 2; number % 10 == 4 && id < vocab; id += 9)
            masked_after.push_back({id % 14 - 7, id});
          const SampleRow row = {{.temperature = temperature,
                                  .top_p = top_p,
                                  .min_p = min_p,
                                  .top_k = top_k,
                                  .seed = uint64_t{0x123456789abcdef0} * (number + 1),
                                  .position = number * 7919,
                                  .choice = number % 5,
                                  .presence_penalty = 0.25f,
                                  .frequency_penalty = 0.3f,
                                  .repetition_penalty = number % 3 == 0 ? 1.0f : 1.4f},
                                 counts,
                                 biases,
                                 masked,
                                 allowed,
                                 /*allowed_mask=*/{},
                                 last,
                                 masked_after};
          ++number;
          check(logits, row);
        }
}

/// The probability that counts differ from `probabilities` at least as much as those of the drawn
/// tokens (the chi-square test with Wilson and Hilferty's cube-root approximation). It is 0 if a
/// token was drawn whose probability is 0.
inline double fit(const std::vector<int32_t>& tokens, const std::vector<double>& probabilities) {
  std::vector<double> counts(probabilities.size());
  for (const int32_t token : tokens) counts[token] += 1;
  double chi_square = 0, freedom = -1;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * static_cast<double>(tokens.size());
    if (expected == 0 && counts[i] > 0) return 0;
    if (expected == 0) continue;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    freedom += 1;
  }
  const double variance = 2 / (9 * freedom);
  const double z = (std::cbrt(chi_square / freedom) - (1 - variance)) / std::sqrt(variance);
  return std::erfc(z / std::sqrt(2.0)) / 2;
}

}  // namespace nanovllm
