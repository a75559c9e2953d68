#include <algorithm>
#include <cstring>

#include "nanovllm/base/check.h"
#include "nanovllm/ops/cuda/backend/cuda_backend.h"

// How CudaBackend draws the tokens of a step.
namespace nanovllm::cuda {

namespace {

/// How many rows of logits are gathered from the ranks, or copied, at a time.
constexpr int kFewRows = 64;

}  // namespace

void CudaBackend::sample(Tensor logits, const Batch& /*batch*/) {
  const ContextScope here(context_);
  const SampleParams params = sample_params(logits);
  sample_plain(where_, params, progress_.as<RowProgress>());
  draw_from_ranks(params);
}

void CudaBackend::norm_sample(Tensor logits, Residual& residual, const Norm& norm, const Weight& w,
                              const Batch& batch) {
  const ContextScope here(context_);
  const auto& weight = static_cast<const DeviceWeight&>(w);
  if (weight.quantized) return Backend::norm_sample(logits, residual, norm, w, batch);
  const Tensor& matrix = weight.matrix;
  GemmArgs args = {.w = matrix.data,
                   .num_tokens = static_cast<int>(residual.num_tokens()),
                   .n = static_cast<int>(matrix.shape[0]),
                   .k = static_cast<int>(matrix.shape[1])};
  if (!draws_in_gemm_ || !supports_sample_gemm(args, matrix.dtype))
    return Backend::norm_sample(logits, residual, norm, w, batch);
  args.x = this->norm(residual, norm).data;
  const SampleParams params = sample_params(logits);
  sample_gemm(where_, args, params, progress_.as<RowProgress>());
  draw_from_ranks(params);
}

void CudaBackend::draw_from_ranks(const SampleParams& params) {
  if (!collectives_) return;
  const int64_t num_rows = (params.num_rows + 1) / 2 * 2;  // a multiple of 16 bytes
  const Tensor all(params.found + num_rows, DType::kI64, collectives_->ranks().rank().world,
                   num_rows);
  collectives_->all_gather(all.data, params.found,
                           static_cast<size_t>(num_rows) * sizeof(FoundRow));
  draw_found(where_, params, all);
}

SampleParams CudaBackend::sample_params(const Tensor& logits) const {
  return {.logits = logits.as<const float>(),
          .rows = rows_,
          .drawn = drawn_at_.as<DrawnRow*>(),
          .last_tokens = last_tokens_,
          .num_rows = static_cast<int>(logits.shape[0]),
          .vocab = static_cast<int>(logits.shape[1]),
          .first_id = static_cast<int>(vocab_.first),
          .found = collectives_ ? found_.as<FoundRow>() : nullptr,
          .input_ids = input_ids_,
          .sample_rows = sample_rows_,
          .words = words_sent_[(num_words_ + kNumSlots - 1) % kNumSlots].device.as<int32_t>()};
}

const float* CudaBackend::whole_logits(Tensor logits, const int32_t* rows, int64_t count) {
  grow(whole_logits_, static_cast<size_t>(count * vocab_size_) * sizeof(float));
  grow(gather_scratch_, static_cast<size_t>(collectives_->gather_scratch(count, vocab_size_)) * 4);
  collectives_->gather_logits(whole_logits_.as<float>(), logits, rows, count, vocab_size_,
                              gather_scratch_.as<float>());
  return whole_logits_.as<float>();
}

template <class Body>
void CudaBackend::for_rows(Tensor logits, const int32_t* rows, int num_rows, bool needs_scratch,
                           Body body) {
  SampleParams params = sample_params(logits);
  if (collectives_) params.vocab = static_cast<int>(vocab_size_);
  const int most = collectives_ || needs_scratch ? std::min(kFewRows, num_rows) : num_rows;
  if (needs_scratch)
    grow(special_scratch_,
         static_cast<size_t>(most) * static_cast<size_t>(params.vocab) * sizeof(float));
  for (int first = 0; first < num_rows; first += most) {
    const int count = std::min(most, num_rows - first);
    if (collectives_) {
      params.logits = rows != nullptr ? whole_logits(logits, rows + first, count)
                                      : whole_logits(logits.rows(first, count), nullptr, count);
      params.gathered = true;
    }
    body(params, first, count);
  }
}

void CudaBackend::send_words() {
  Words& words = words_sent_[num_words_++ % kNumSlots];
  wait(words.there);
  const size_t bytes = words_.size() * sizeof(int32_t);
  grow(words.host, bytes);
  grow(words.device, bytes);
  std::memcpy(words.host.memory.get(), words_.data(), bytes);
  cuda_check(cudaStreamWaitEvent(words_stream_, words.used), "lists");
  cuda_check(cudaMemcpyAsync(words.device.memory.get(), words.host.memory.get(), bytes,
                             cudaMemcpyHostToDevice, words_stream_),
             "lists");
  cuda_check(cudaEventRecord(words.there, words_stream_), "lists");
}

void CudaBackend::finish_sample(Tensor logits) {
  const ContextScope here(context_);
  const Words& words = words_sent_[(num_words_ + kNumSlots - 1) % kNumSlots];
  if (!words_.empty()) cuda_check(cudaStreamWaitEvent(where_.stream, words.there), "sampler");
  const auto vocab = static_cast<int>(collectives_ ? vocab_size_ : logits.shape[1]);
  const bool clusters = !portable_ && row_fits_in_cluster(vocab);
  for_rows(logits, special_rows_.special, static_cast<int>(special_.size()), !clusters,
           [&](const SampleParams& params, int first, int count) {
             sample_special(where_, params, special_rows_.special + first, count,
                            clusters ? nullptr : special_scratch_.as<float>());
           });
  Results& results = results_[num_finished_++ % kNumSlots];
  results.wanted = wanted_;
  if (!wanted_.empty()) {
    const LogprobRow& last = wanted_.back();
    grow(results.logprobs, static_cast<size_t>(last.first + last.count) * sizeof(Logprob));
  }
  for_rows(logits, special_rows_.wanted_rows, static_cast<int>(wanted_.size()), processed_logprobs_,
           [&](SampleParams params, int first, int count) {
             const LogprobRow* const wanted = special_rows_.wanted + first;
             if (processed_logprobs_) {
               process_logits(where_, params, wanted, count, special_scratch_.as<float>());
               params.logits = special_scratch_.as<float>();
               params.gathered = true;
             }
             cuda::token_logprobs(where_, params, wanted, count, results.logprobs.as<Logprob>(),
                                  clusters);
           });
  if (!words_.empty()) cuda_check(cudaEventRecord(words.used, where_.stream), "sampler");
  cuda_check(cudaEventRecord(results.there, where_.stream), "sampler");
}

void CudaBackend::fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                                std::vector<Logprob>& logprobs) {
  const ContextScope here(context_);
  check(num_fetched_ < num_finished_, "no step whose tokens are not fetched");
  const Results& results = results_[num_fetched_++ % kNumSlots];
  wait(results.there);
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

void CudaBackend::token_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                                 std::vector<Logprob>& entries) {
  const ContextScope here(context_);
  const int64_t vocab = collectives_ ? vocab_size_ : logits.shape[1];
  const auto width = static_cast<int32_t>(k) + 1;
  std::vector<LogprobRow> wanted;
  for (const int32_t id : targets) {
    check(0 <= id && id < vocab, "target {} is not in the vocabulary of {}", id, vocab);
    const auto row = static_cast<int32_t>(wanted.size());
    wanted.push_back({row, id, width, row * width});
  }
  const std::span<const LogprobRow> all = wanted;
  const size_t num_entries = all.size() * static_cast<size_t>(width);
  grow(prompt_wanted_, all.size_bytes());
  grow(prompt_logprobs_, num_entries * sizeof(Logprob));
  upload(prompt_wanted_.memory.get(), all.data(), all.size_bytes());
  const bool clusters = !portable_ && row_fits_in_cluster(static_cast<int>(vocab));
  for_rows(logits, nullptr, static_cast<int>(all.size()), false,
           [&](const SampleParams& params, int first, int count) {
             cuda::token_logprobs(where_, params, prompt_wanted_.as<LogprobRow>() + first, count,
                                  prompt_logprobs_.as<Logprob>(), clusters);
           });
  wait_for_stream();
  const auto* const first = prompt_logprobs_.as<const Logprob>();
  entries.insert(entries.end(), first, first + num_entries);
}

}  // namespace nanovllm::cuda
