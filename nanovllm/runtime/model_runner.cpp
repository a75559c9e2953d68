#include "nanovllm/runtime/model_runner.h"

#include <algorithm>
#include <utility>

#include "nanovllm/base/check.h"

namespace nanovllm {

DType model_dtype(const EngineConfig& config, const ModelConfig& model) {
  if (config.dtype != "auto") return parse_float_dtype(config.dtype);
  return model.dtype == DType::kF32 ? DType::kBF16 : model.dtype;
}

ModelRunner::ModelRunner(const std::string& folder, const EngineConfig& config,
                         const ModelConfig& model, const KvSize& kv,
                         std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)),
      model_(load_model(folder, model, model_dtype(config, model), config.load_format == "dummy",
                        *backend_, kv.max_model_len)),
      activations_(*backend_, model, model_->dtype, config.max_num_batched_tokens,
                   config.max_num_seqs),
      state_(config.max_num_seqs, (kv.max_model_len + config.block_size - 1) / config.block_size,
             config.block_size),
      max_rows_(config.max_num_seqs) {
  kv_.dtype = model_->dtype;
  kv_.num_layers = model.num_layers;
  kv_.num_blocks = kv.num_blocks;
  kv_.block_size = config.block_size;
  kv_.num_kv_heads = model.num_kv_heads;
  kv_.head_dim = model.head_dim;
  kv_buffer_ = backend_->allocate(kv_.block_bytes() * static_cast<size_t>(kv.num_blocks));
  kv_.data = kv_buffer_.get();
}

void ModelRunner::run(const StepInput& input, StepOutput& output) {
  output.step = input.header().step;
  state_.apply(input, batch_);
  forward(*backend_, *model_, kv_, batch_.view(), activations_);
  prompt_logprobs(input, output);
  if (!input.samples().empty()) sample(input, output);
  if (input.copies().empty()) return;
  copy_from_.clear();
  copy_to_.clear();
  for (const BlockCopy& copy : input.copies()) {
    copy_from_.push_back(copy.from);
    copy_to_.push_back(copy.to);
  }
  backend_->copy_blocks(kv_, copy_from_, copy_to_);
}

void ModelRunner::prompt_logprobs(const StepInput& input, StepOutput& output) {
  for (size_t r = 0; r < input.rows().size(); ++r) {
    const RowInput& row = input.rows()[r];
    if (row.want_logprobs == 0) continue;
    const int32_t k = state_.slot(row.slot).setup().num_prompt_logprobs;
    const int32_t first = batch_.cu_seqlens_q[r];
    const int32_t num_targets = row.next_token >= 0 ? row.num_tokens : row.num_tokens - 1;
    for (int32_t done = 0; done < num_targets;) {
      const auto count = static_cast<int32_t>(std::min<int64_t>(num_targets - done, max_rows_));
      row_indices_.clear();
      targets_.clear();
      for (int32_t i = done; i < done + count; ++i) {
        row_indices_.push_back(first + i);
        targets_.push_back(i + 1 < row.num_tokens
                               ? batch_.input_ids[static_cast<size_t>(first + i + 1)]
                               : row.next_token);
        output.prompt.push_back({static_cast<int32_t>(r), row.start + i + 1, k + 1});
      }
      const Tensor logits = compute_logits(*backend_, *model_,
                                           {row_indices_.data(), DType::kI32, count}, activations_);
      add_logprobs(logits, targets_, k, output.prompt_logprobs);
      done += count;
    }
  }
}

void ModelRunner::sample(const StepInput& input, StepOutput& output) {
  const size_t num_rows = input.samples().size();
  rows_.clear();
  for (const SampleInput& sample : input.samples()) {
    const RowInput& row = input.rows()[static_cast<size_t>(sample.row)];
    rows_.push_back(state_.slot(sample.slot).sample_row(row.start + row.num_tokens));
  }
  token_ids_.resize(num_rows);
  status_.resize(num_rows);
  Tensor indices = batch_.view().sample_rows;
  const Tensor logits = compute_logits(*backend_, *model_, indices, activations_);
  backend_->sample(logits, rows_, token_ids_, status_);

  for (size_t i = 0; i < num_rows; ++i) {
    const SampleInput& sample = input.samples()[i];
    Slot& slot = state_.slot(sample.slot);
    SampleOutput drawn;
    drawn.sequence = sample.sequence;
    drawn.token_id = token_ids_[i];
    slot.push(token_ids_[i]);
    if (status_[i] == RowStatus::kOk) {
      drawn.num_tokens = 1;
      drawn.num_logprobs = slot.setup().num_logprobs + 1;
    } else {
      drawn.status = SampleStatus::kNotFinite;
    }
    output.samples.push_back(drawn);
  }
  // Neighbours that want as many alternatives go together.
  for (size_t i = 0; i < num_rows;) {
    const int32_t wanted = output.samples[i].num_logprobs;
    size_t end = i + 1;
    while (end < num_rows && output.samples[end].num_logprobs == wanted) ++end;
    if (wanted > 0)
      add_logprobs(logits.rows(static_cast<int64_t>(i), static_cast<int64_t>(end - i)),
                   std::span(token_ids_).subspan(i, end - i), wanted - 1, output.logprobs);
    i = end;
  }
}

void ModelRunner::add_logprobs(Tensor logits, std::span<const int32_t> targets, int64_t k,
                               std::vector<LogprobEntry>& entries) {
  const size_t width = static_cast<size_t>(k) + 1;
  ids_.resize(targets.size() * width);
  logprobs_.resize(ids_.size());
  ranks_.resize(targets.size());
  backend_->token_logprobs(logits, targets, k, ids_, logprobs_, ranks_);
  for (size_t i = 0; i < ids_.size(); ++i)
    entries.push_back({ids_[i], logprobs_[i],
                       i % width == 0 ? ranks_[i / width] : static_cast<int32_t>(i % width)});
}

}  // namespace nanovllm
