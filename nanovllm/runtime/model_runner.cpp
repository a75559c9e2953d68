#include "nanovllm/runtime/model_runner.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"

namespace nanovllm {

ModelRunner::ModelRunner(const std::string& folder, const EngineSetup& setup,
                         std::unique_ptr<Backend> backend, Rank rank)
    : backend_(std::move(backend)),
      activations_(*backend_, make_shard(setup.model, rank).model, setup.dtype,
                   setup.config.max_num_batched_tokens, setup.config.max_num_seqs),
      state_(setup.config.max_num_seqs, setup.config.block_size),
      replays_(!setup.config.enforce_eager && backend_->replays()) {
  host_.processed_logprobs = setup.config.logprobs_mode == "processed_logprobs";
  const EngineConfig& c = setup.config;
  // Reading the weights and preparing kernels take about the same time.
  load_model(model_, folder, setup.model, setup.dtype, c.load_format == "dummy", *backend_,
             c.max_model_len, rank, [&] {
               allocate_cache(setup);
               prepare(setup);
             });
}

void ModelRunner::allocate_cache(const EngineSetup& setup) {
  kv_ = {.dtype = setup.kv_dtype,
         .num_layers = model_.spec.num_layers(),
         .num_blocks = setup.num_blocks,
         .block_size = setup.config.block_size,
         .num_kv_heads = model_.spec.attention().num_kv_heads,
         .head_dim = model_.spec.attention().head_dim};
  try {
    buffers_.push_back(
        backend_->allocate(kv_.block_bytes() * static_cast<size_t>(setup.num_blocks)));
  } catch (const UserError& error) {
    fail("the KV cache of {} blocks: {}; make it smaller with --kv-cache-memory-bytes",
         setup.num_blocks, error.what());
  }
  kv_.data = buffers_.back().get();
  const auto allocate_ints = [&](auto... sizes) -> Tensor {
    buffers_.push_back(backend_->allocate(static_cast<size_t>((sizes * ...)) * sizeof(int32_t)));
    return {buffers_.back().get(), DType::kI32, sizes...};
  };
  tables_.block_tables = allocate_ints(setup.config.max_num_seqs, setup.max_blocks_per_seq());
  tables_.last_tokens = allocate_ints(setup.config.max_num_seqs);
}

void ModelRunner::prepare(const EngineSetup& setup) {
  const EngineConfig& c = setup.config;
  const Warmup warmup = {
      .max_tokens = std::min(c.max_num_batched_tokens, c.max_num_seqs * c.max_model_len),
      .max_seqs = c.max_num_seqs,
      .graph_sizes = replays_ ? graph_sizes(max_replay_rows()) : std::vector<int64_t>(),
      .weight_bytes = model_.weight_bytes,
      .run = [&](const WarmupStep& step) { warm_up(step, c.max_model_len); }};
  backend_->prepare(warmup, choice_cache(c));
}

void ModelRunner::warm_up(const WarmupStep& step, int64_t max_len) {
  fill(host_, step, state_.num_slots(), max_len);
  const Batch batch = backend_->begin_step(host_, tables_, kv_);
  const int64_t num_rows = batch.sample_rows.shape[0];
  const Tensor logits = activations_.logits.rows(0, num_rows);
  const auto pass = [&](int64_t num_layers) {
    const bool all = num_rows == batch.num_tokens();
    const auto rows = all ? std::nullopt : std::optional(batch.sample_rows);
    std::optional<Residual> last =
        forward(*backend_, model_, kv_, batch, rows, activations_, num_layers);
    backend_->norm_sample(logits, *last, model_.norm, *model_.lm_head, batch);
  };
  if (step.replays) return backend_->replay(num_rows, [&] { pass(model_.spec.num_layers()); });
  pass(2);  // the last layer computes only the rows that are sampled
  backend_->finish_sample(logits);
  token_ids_.resize(static_cast<size_t>(num_rows));
  status_.resize(static_cast<size_t>(num_rows));
  // Nobody uses the tokens of a warmup, and the first step clears the log-probabilities.
  backend_->fetch_samples(token_ids_, status_, flights_[0].output.logprobs);
}

int64_t ModelRunner::replay_size(const StepInput& input) const {
  const auto num_rows = static_cast<int64_t>(input.rows.size());
  // A sequence that starts may share blocks that this same step fills, but a replayed step
  // prefetches all keys except the newest.
  if (!replays_ || num_rows > max_replay_rows() || !input.setups.empty() ||
      input.token_ids.size() != input.rows.size() || input.samples.size() != input.rows.size())
    return 0;
  // A row of one token that is sampled needs no log-probabilities of the prompt.
  for (size_t i = 0; i < input.rows.size(); ++i)
    if (input.samples[i].row != static_cast<int32_t>(i)) return 0;
  return padded_rows(num_rows, max_replay_rows());
}

void ModelRunner::pad(int64_t size) {
  const auto n = static_cast<size_t>(size);
  host_.input_ids.resize(n, 0);
  host_.positions.resize(n, 0);
  host_.slot_mapping.resize(n, -1);
  while (host_.cu_seqlens_q.size() <= n)
    host_.cu_seqlens_q.push_back(host_.cu_seqlens_q.back() + 1);
  host_.context_lens.resize(n, 0);
  host_.seq_slots.resize(n, 0);
  while (host_.sample_rows.size() < n)
    host_.sample_rows.push_back(static_cast<int32_t>(host_.sample_rows.size()));
  host_.sample_slots.resize(n, -1);
  host_.samples.resize(n, SampleRow{{.temperature = 0}});
}

void ModelRunner::submit(const StepInput& input) {
  check(num_submitted_ - num_waited_ < flights_.size(), "more than two steps in flight");
  check(input.state_copies.empty(), "no layer of the model has a recurrent state");
  Flight& now = flight(num_submitted_);
  now.output.clear();
  now.output.submit_time = steady_seconds();
  state_.apply(input);
  state_.fill(input, host_);
  start_samples(input, now);

  const int64_t size = replay_size(input);
  if (size > 0) pad(size);
  const Batch batch = backend_->begin_step(host_, tables_, kv_);
  const Tensor logits = activations_.logits.rows(0, batch.sample_rows.shape[0]);
  const auto pass = [&] {
    const int64_t num_rows = batch.sample_rows.shape[0];
    const bool wants_all =
        std::ranges::any_of(input.rows, [](const RowInput& row) { return row.want_logprobs != 0; });
    const bool in_order = std::ranges::equal(
        host_.sample_rows, std::views::iota(0, static_cast<int32_t>(batch.num_tokens())));
    std::optional<Tensor> rows;
    if (!wants_all && num_rows < batch.num_tokens()) rows = batch.sample_rows;
    std::optional<Residual> last = forward(*backend_, model_, kv_, batch, rows, activations_);
    if (wants_all) prompt_logprobs(input, *last, now.output);
    if (num_rows == 0) return;
    if (!rows && !in_order) last = gather_rows(*backend_, *last, batch.sample_rows, activations_);
    backend_->norm_sample(logits, *last, model_.norm, *model_.lm_head, batch);
  };
  if (size > 0) backend_->replay(size, pass);
  else if (batch.num_tokens() > 0) pass();
  if (!batch.samples.empty()) backend_->finish_sample(logits);
  if (!input.copies.empty()) backend_->copy_blocks(kv_, input.copies);
  ++num_submitted_;
}

const StepOutput& ModelRunner::wait() {
  check(num_waited_ < num_submitted_, "wait without a step in flight");
  Flight& oldest = flight(num_waited_);
  if (!oldest.slots.empty()) fetch(oldest);
  oldest.output.done_time = steady_seconds();
  ++num_waited_;
  return oldest.output;
}

void ModelRunner::start_samples(const StepInput& input, Flight& flight) {
  flight.slots.clear();
  for (const SampleInput& sample : input.samples) {
    const Slot& slot = state_.slot(sample.slot);
    SampleOutput drawn;
    drawn.sequence = sample.sequence;
    drawn.num_logprobs = slot.setup().num_logprobs + 1;
    flight.output.samples.push_back(drawn);
    flight.slots.emplace_back(sample.slot, slot.num_starts());
  }
}

void ModelRunner::fetch(Flight& flight) {
  const size_t num_rows = flight.output.samples.size();
  token_ids_.resize(num_rows);
  status_.resize(num_rows);
  backend_->fetch_samples(token_ids_, status_, flight.output.logprobs);
  for (size_t i = 0; i < num_rows; ++i) {
    SampleOutput& drawn = flight.output.samples[i];
    drawn.token_id = token_ids_[i];
    drawn.status = status_[i];
    Slot& slot = state_.slot(flight.slots[i].first);
    const bool is_same = slot.num_starts() == flight.slots[i].second;
    if (drawn.status != RowStatus::kOk) drawn.num_logprobs = 0;
    if (is_same && !slot.is_complete()) drawn.status = RowStatus::kNoMemory;
    if (is_same) slot.push(token_ids_[i]);
  }
}

void ModelRunner::prompt_logprobs(const StepInput& input, Residual& last, StepOutput& output) {
  backend_->finish(last);
  for (size_t r = 0; r < input.rows.size(); ++r) {
    const RowInput& row = input.rows[r];
    if (row.want_logprobs == 0) continue;
    const int32_t k = state_.slot(row.slot).setup().num_prompt_logprobs;
    const int32_t first = host_.cu_seqlens_q[r];
    const int32_t num_targets = row.next_token >= 0 ? row.num_tokens : row.num_tokens - 1;
    for (int32_t done = 0; done < num_targets;) {
      const auto count =
          static_cast<int32_t>(std::min<int64_t>(num_targets - done, state_.num_slots()));
      targets_.clear();
      for (int32_t i = done; i < done + count; ++i) {
        targets_.push_back(i + 1 < row.num_tokens
                               ? host_.input_ids[static_cast<size_t>(first + i + 1)]
                               : row.next_token);
        output.prompt.push_back({static_cast<int32_t>(r), row.start + i + 1, k + 1});
      }
      Residual some = last.rows(first + done, count);
      const Tensor logits = activations_.logits.rows(0, count);
      backend_->norm_matmul(logits, some, model_.norm, *model_.lm_head);
      backend_->token_logprobs(logits, targets_, k, output.prompt_logprobs);
      done += count;
    }
  }
}

}  // namespace nanovllm
