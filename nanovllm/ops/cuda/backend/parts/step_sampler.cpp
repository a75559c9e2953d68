#include "nanovllm/ops/cuda/backend/parts/step_sampler.h"

#include <algorithm>
#include <cstring>

#include "nanovllm/base/check.h"

namespace nanovllm::cuda {

namespace {

/// How many rows of logits are gathered from the ranks, or copied, at a time.
constexpr int kFewRows = 64;

template <class T>
void append(std::vector<int32_t>& words, std::span<const T> list) {
  static_assert(sizeof(T) % sizeof(int32_t) == 0);
  const size_t at = words.size();
  words.resize(at + list.size_bytes() / sizeof(int32_t));
  if (!list.empty()) std::memcpy(words.data() + at, list.data(), list.size_bytes());
}

}  // namespace

StepSampler::StepSampler(Device& device) : device_(device) {
  cuda_check(cudaStreamCreateWithFlags(&words_stream_, cudaStreamNonBlocking), "stream");
}

StepSampler::~StepSampler() { cudaStreamDestroy(words_stream_); }

// -- the plan

void StepSampler::plan(const Step& step) {
  words_.clear();
  num_late_words_ = 0;
  special_.clear();
  row_params_.clear();
  wanted_.clear();
  wanted_rows_.clear();
  for (size_t i = 0; i < step.samples.size(); ++i) {
    const SampleRow& sample = step.samples[i];
    row_params_.push_back(row_params(sample, step.outputs[i].slot));
    if (row_params_.back().is_plain == 0) special_.push_back(static_cast<int32_t>(i));
    if (sample.num_logprobs == 0) continue;
    const int32_t first = wanted_.empty() ? 0 : wanted_.back().first + wanted_.back().count;
    wanted_rows_.push_back(static_cast<int32_t>(i));
    wanted_.push_back({.row = wanted_rows_.back(), .count = sample.num_logprobs, .first = first});
  }
  if (!words_.empty() && num_late_words_ == 0) send_words(step);
  draws_in_gemm_ = wanted_.empty() && special_.empty() && !device_.portable() &&
                   device_.kernels.gemm < 0 && step.num_drawn() >= kFewestDrawn &&
                   step.num_drawn() <= kMostDrawn;

  const auto max_seqs = static_cast<size_t>(step.last_tokens.shape[0]);
  device_.grow(progress_, max_seqs * sizeof(RowProgress));
  device_.grow(drawn_at_, sizeof(DrawnRow*));
  for (Results& results : results_) device_.grow(results.drawn, max_seqs * sizeof(DrawnRow));
  if (device_.collectives == nullptr) return;
  const auto world = static_cast<size_t>(device_.rank.world);
  device_.grow(found_, (1 + world) * (max_seqs + 1) * sizeof(FoundRow));
}

RowParams StepSampler::row_params(const SampleRow& row, int32_t slot) {
  RowParams params{row};
  params.slot = slot;
  params.last_token = row.last_token;
  if (!row.has_lists() && (!row.has_filters() || row.temperature < 1e-5f)) return params;
  params.is_plain = 0;
  // Aligned, because the kernel reads pairs of words.
  if ((words_.size() + num_late_words_) % 2 != 0) words_.push_back(0);
  params.first_word = static_cast<int32_t>(words_.size() + num_late_words_);
  params.num_counts = static_cast<int32_t>(row.counts.size());
  params.num_biases = static_cast<int32_t>(row.biases.size());
  params.num_masked_after = static_cast<int32_t>(row.masked_after.size());
  params.num_masked = static_cast<int32_t>(row.masked_ids.size());
  params.num_allowed = static_cast<int32_t>(row.allowed_ids.size());
  params.num_mask_words =
      row.num_late_words > 0 ? row.num_late_words : static_cast<int32_t>(row.allowed_mask.size());
  append(words_, row.counts);
  append(words_, row.biases);
  append(words_, row.masked_after);
  append(words_, row.masked_ids);
  append(words_, row.allowed_ids);
  append(words_, row.num_late_words > 0 ? std::span<const int32_t>() : row.allowed_mask);
  num_late_words_ += static_cast<size_t>(row.num_late_words);
  return params;
}

void StepSampler::send_words(const Step& step) {
  Words& words = words_sent_[num_words_++ % kNumSteps];
  device_.wait(words.there);
  const size_t bytes = (words_.size() + num_late_words_) * sizeof(int32_t);
  device_.grow(words.host, bytes);
  device_.grow(words.device, bytes);
  auto* to = words.host.as<int32_t>();
  std::span<const int32_t> from = words_;
  for (size_t i = 0; num_late_words_ > 0 && i < step.samples.size(); ++i) {
    const SampleRow& row = step.samples[i];
    if (row.num_late_words == 0) continue;
    const RowParams& params = row_params_[i];
    // The mask is the last one of the row's lists.
    const int32_t begin = params.first_word + 2 * (params.num_counts + params.num_biases) +
                          2 * params.num_masked_after + params.num_masked + params.num_allowed;
    const auto before = static_cast<size_t>(words.host.as<int32_t>() + begin - to);
    to = std::ranges::copy(from.first(before), to).out;
    from = from.subspan(before);
    to = row.allowed_mask.empty() ? std::fill_n(to, row.num_late_words, -1)  // allows all tokens
                                  : std::ranges::copy(row.allowed_mask, to).out;
  }
  std::ranges::copy(from, to);
  cuda_check(cudaStreamWaitEvent(words_stream_, words.used.get()), "lists");
  cuda_check(cudaMemcpyAsync(words.device.memory.get(), words.host.memory.get(), bytes,
                             cudaMemcpyHostToDevice, words_stream_),
             "lists");
  words.there.record(words_stream_);
}

// -- the plain rows

SampleParams StepSampler::params(const Tensor& logits, const Step& step) const {
  return {.logits = logits.as<const float>(),
          .rows = on_device_.rows.data(),
          .drawn = drawn_at_.as<DrawnRow*>(),
          .last_tokens = step.last_tokens.as<int32_t>(),
          .num_rows = static_cast<int>(logits.shape[0]),
          .vocab = static_cast<int>(logits.shape[1]),
          .first_id = static_cast<int>(own_.first),
          .found = device_.collectives != nullptr ? found_.as<FoundRow>() : nullptr,
          .input_ids = step.input_ids.as<const int32_t>(),
          .sample_rows = step.output_rows.as<const int32_t>(),
          .words = last_words().device.as<int32_t>()};
}

void StepSampler::sample(const Tensor& logits, const Step& step) {
  const SampleParams all = params(logits, step);
  sample_plain(device_.where, all, progress_.as<RowProgress>());
  draw_from_ranks(all);
}

void StepSampler::sample_gemm(const GemmArgs& args, const Tensor& logits, const Step& step) {
  const SampleParams all = params(logits, step);
  cuda::sample_gemm(device_.where, args, all, progress_.as<RowProgress>());
  draw_from_ranks(all);
}

void StepSampler::draw_from_ranks(const SampleParams& params) {
  if (device_.collectives == nullptr) return;
  const int64_t num_rows = (params.num_rows + 1) / 2 * 2;  // a multiple of 16 bytes
  const Tensor all(params.found + num_rows, DType::kI64, device_.rank.world, num_rows);
  device_.collectives->all_gather(all.data, params.found,
                                  static_cast<size_t>(num_rows) * sizeof(FoundRow));
  draw_found(device_.where, params, all);
}

// -- special rows and log-probabilities

const float* StepSampler::whole_logits(const Tensor& logits, const int32_t* rows, int64_t count) {
  Collectives& collectives = *device_.collectives;
  device_.grow(whole_logits_, static_cast<size_t>(count * vocab_size_) * sizeof(float));
  device_.grow(gather_scratch_,
               static_cast<size_t>(collectives.gather_scratch(count, vocab_size_)) * sizeof(float));
  collectives.gather_logits(whole_logits_.as<float>(), logits, rows, count, vocab_size_,
                            gather_scratch_.as<float>());
  return whole_logits_.as<float>();
}

template <class Body>
void StepSampler::for_rows(const Tensor& logits, const Step& step, const int32_t* rows,
                           int num_rows, bool needs_scratch, Body body) {
  const bool gathers = device_.collectives != nullptr;
  SampleParams all = params(logits, step);
  if (gathers) all.vocab = static_cast<int>(vocab_size_);
  const int most = gathers || needs_scratch ? std::min(kFewRows, num_rows) : num_rows;
  if (needs_scratch)
    device_.grow(special_scratch_,
                 static_cast<size_t>(most) * static_cast<size_t>(all.vocab) * sizeof(float));
  for (int first = 0; first < num_rows; first += most) {
    const int count = std::min(most, num_rows - first);
    if (gathers) {
      all.logits = rows != nullptr ? whole_logits(logits, rows + first, count)
                                   : whole_logits(logits.rows(first, count), nullptr, count);
      all.gathered = true;
    }
    body(all, first, count);
  }
}

void StepSampler::finish(const Tensor& logits, const Step& step) {
  const Launch& where = device_.where;
  if (num_late_words_ > 0) send_words(step);
  const Words& words = last_words();
  const bool has_words = !words_.empty() || num_late_words_ > 0;
  if (has_words) cuda_check(cudaStreamWaitEvent(where.stream, words.there.get()), "sampler");
  const auto vocab =
      static_cast<int>(device_.collectives != nullptr ? vocab_size_ : logits.shape[1]);
  const bool clusters = !device_.portable() && row_fits_in_cluster(vocab);
  for_rows(logits, step, on_device_.special.data(), static_cast<int>(special_.size()), !clusters,
           [&](const SampleParams& params, int first, int count) {
             sample_special(where, params, on_device_.special.data() + first, count,
                            clusters ? nullptr : special_scratch_.as<float>());
           });
  Results& results = results_[num_finished_++ % kNumSteps];
  results.wanted = wanted_;
  if (!wanted_.empty()) {
    const LogprobRow& last = wanted_.back();
    device_.grow(results.logprobs, static_cast<size_t>(last.first + last.count) * sizeof(Logprob));
  }
  for_rows(logits, step, on_device_.wanted_rows.data(), static_cast<int>(wanted_.size()),
           step.processed_logprobs, [&](SampleParams params, int first, int count) {
             const LogprobRow* const wanted = on_device_.wanted.data() + first;
             if (step.processed_logprobs) {
               process_logits(where, params, wanted, count, special_scratch_.as<float>());
               params.logits = special_scratch_.as<float>();
               params.gathered = true;
             }
             cuda::token_logprobs(where, params, wanted, count, results.logprobs.as<Logprob>(),
                                  clusters);
           });
  if (has_words) words.used.record(where.stream);
  results.there.record(where.stream);
}

void StepSampler::fetch(std::span<int32_t> token_ids, std::span<RowStatus> status,
                        std::vector<Logprob>& logprobs) {
  check(num_fetched_ < num_finished_, "no step whose tokens are not fetched");
  const Results& results = results_[num_fetched_++ % kNumSteps];
  device_.wait(results.there);
  const auto* const drawn = results.drawn.as<const DrawnRow>();
  for (size_t i = 0; i < token_ids.size(); ++i) {
    token_ids[i] = drawn[i].token;
    status[i] = static_cast<RowStatus>(drawn[i].status);
  }
  for (const LogprobRow& row : results.wanted) {
    if (status[static_cast<size_t>(row.row)] != RowStatus::kOk) continue;
    const auto* const first = results.logprobs.as<const Logprob>() + row.first;
    logprobs.insert(logprobs.end(), first, first + row.count);
  }
}

void StepSampler::token_logprobs(const Tensor& logits, const Step& step,
                                 std::span<const int32_t> targets, int64_t k,
                                 std::vector<Logprob>& entries) {
  const int64_t vocab = device_.collectives != nullptr ? vocab_size_ : logits.shape[1];
  const auto width = static_cast<int32_t>(k) + 1;
  std::vector<LogprobRow> wanted;
  for (const int32_t id : targets) {
    check(0 <= id && id < vocab, "target {} is not in the vocabulary of {}", id, vocab);
    const auto row = static_cast<int32_t>(wanted.size());
    wanted.push_back({row, id, width, row * width});
  }
  const std::span<const LogprobRow> all = wanted;
  const size_t num_entries = all.size() * static_cast<size_t>(width);
  device_.grow(prompt_wanted_, all.size_bytes());
  device_.grow(prompt_logprobs_, num_entries * sizeof(Logprob));
  device_.upload(prompt_wanted_.memory.get(), all.data(), all.size_bytes());
  const bool clusters = !device_.portable() && row_fits_in_cluster(static_cast<int>(vocab));
  for_rows(logits, step, nullptr, static_cast<int>(all.size()), false,
           [&](const SampleParams& params, int first, int count) {
             cuda::token_logprobs(device_.where, params, prompt_wanted_.as<LogprobRow>() + first,
                                  count, prompt_logprobs_.as<Logprob>(), clusters);
           });
  device_.wait_for_stream();
  const auto* const first = prompt_logprobs_.as<const Logprob>();
  entries.insert(entries.end(), first, first + num_entries);
}

}  // namespace nanovllm::cuda
