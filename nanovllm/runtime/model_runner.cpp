#include "nanovllm/runtime/model_runner.h"

#include "nanovllm/base/check.h"
#include "nanovllm/base/system/clock.h"
#include "nanovllm/base/to_size.h"

namespace nanovllm {

ModelRunner::ModelRunner(const std::string& folder, const EngineSetup& setup,
                         std::unique_ptr<Backend> backend, Rank rank)
    : backend_(std::move(backend)),
      activations_(backend_.get(), make_shard(setup.model, rank).model, setup.dtype,
                   setup.config.max_num_batched_tokens, setup.config.max_num_seqs),
      state_(setup.config.max_num_seqs, setup.config.block_size),
      replays_(!setup.config.enforce_eager && backend_->replays()) {
  const EngineConfig& c = setup.config;
  backend_->step().processed_logprobs = c.logprobs_mode == "processed_logprobs";
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
    buffers_.push_back(backend_->allocate(kv_.block_bytes() * to_size(setup.num_blocks)));
  } catch (const UserError& error) {
    fail("the KV cache of {} blocks: {}; make it smaller with --kv-cache-memory-bytes",
         setup.num_blocks, error.what());
  }
  kv_.data = buffers_.back().get();
  const auto allocate_ints = [&](auto... sizes) -> Tensor {
    buffers_.push_back(backend_->allocate(to_size((sizes * ...)) * sizeof(int32_t)));
    return {buffers_.back().get(), DType::kI32, sizes...};
  };
  kv_.block_tables = allocate_ints(setup.config.max_num_seqs, setup.max_blocks_per_seq());
  backend_->step().last_tokens = allocate_ints(setup.config.max_num_seqs);
}

void ModelRunner::prepare(const EngineSetup& setup) {
  const EngineConfig& c = setup.config;
  const Warmup warmup = {
      .max_tokens = std::min(c.max_num_batched_tokens, c.max_num_seqs * c.max_model_len),
      .max_seqs = c.max_num_seqs,
      .graph_sizes = replays_ ? graph_sizes(max_replay_rows()) : std::vector<int64_t>(),
      .weight_bytes = model_.spec.weight_bytes(setup.dtype, /*on_gpu=*/true),
      .run = [&](const WarmupStep& step) { warm_up(step, c.max_model_len); }};
  backend_->prepare(warmup, choice_cache(c));
}

void ModelRunner::warm_up(const WarmupStep& warmup, int64_t max_len) {
  Step& step = backend_->new_step();
  fill(step, warmup, state_.num_slots(), max_len);
  backend_->begin_step(kv_);
  std::vector<Logprob> logprobs;
  if (warmup.replays)
    return backend_->replay(step.num_seqs(), [&] { compute(step, {}, logprobs); });
  // The last layer computes only the rows that are drawn, so it differs from the others.
  backend_->finish_sample(compute(step, {}, logprobs, /*num_layers=*/2));
  token_ids_.resize(step.samples.size());
  status_.resize(step.samples.size());
  backend_->fetch_samples(token_ids_, status_, logprobs);
}

int64_t ModelRunner::replay_size(const StepInput& input, const Step& step) const {
  const int64_t num_rows = step.num_seqs();
  const bool draws_each_token = step.num_tokens() == num_rows && step.num_drawn() == num_rows &&
                                std::ssize(step.outputs) == num_rows && step.has_outputs_in_order();
  // A sequence that starts may share blocks that this same step fills, but a replayed step
  // prefetches all keys except the newest.
  const bool can_replay = draws_each_token && input.setups.empty();
  if (!replays_ || !can_replay || num_rows > max_replay_rows()) return 0;
  return padded_rows(num_rows, max_replay_rows());
}

void ModelRunner::submit(const StepInput& input) {
  check(num_submitted_ - num_waited_ < flights_.size(), "more than two steps in flight");
  check(!late_logits_, "a step before the late part of the one before it");
  check(input.state_copies.empty(), "no layer of the model has a recurrent state");
  Flight& now = flight(num_submitted_);
  now.output.clear();
  now.output.submit_time = steady_seconds();
  Step& step = backend_->new_step();
  state_.apply(input, step);
  start_outputs(input, now);
  const int64_t size = replay_size(input, step);
  if (size > 0) step.pad(size);
  backend_->begin_step(kv_);
  const Tensor logits = activations_.logits.rows(0, step.num_drawn());
  if (size > 0) {
    backend_->replay(size, [&] { compute(step, {}, now.known_logprobs); });
  } else if (step.num_tokens() > 0) {
    compute(step, input.outputs.subspan(step.samples.size()), now.known_logprobs);
  }
  if (input.has_late()) late_logits_ = logits;
  else if (step.num_drawn() > 0) backend_->finish_sample(logits);
  if (!input.copies.empty()) backend_->copy_blocks(kv_, input.copies);
  ++num_submitted_;
}

void ModelRunner::complete(const StepInput& late) {
  check(late_logits_.has_value(), "no step needs a late part");
  std::span<const int32_t> words = late.mask_words;
  for (const int32_t output : late.late_outputs) {
    SampleRow& row = backend_->step().samples.at(to_size(output));
    const auto count = to_size(row.num_late_words);
    row.allowed_mask = words.first(count);
    words = words.subspan(count);
  }
  backend_->finish_sample(*std::exchange(late_logits_, std::nullopt));
}

Tensor ModelRunner::compute(const Step& step, std::span<const OutputInput> known,
                            std::vector<Logprob>& logprobs, int64_t num_layers) {
  const int64_t num_drawn = step.num_drawn(), num_outputs = step.output_rows.shape[0];
  const int64_t max_rows = activations_.logits.shape[0];
  const Tensor logits = activations_.logits.rows(0, num_drawn);
  // The end of the last layer is computed only for the tokens with outputs, if they are few.
  const bool only_outputs = num_outputs < step.num_tokens() && num_outputs <= max_rows;
  const auto rows = only_outputs ? std::optional(step.output_rows) : std::nullopt;
  std::optional<Residual> last =
      forward(*backend_, model_, kv_, step, rows, activations_, num_layers);
  if (num_outputs == 0) return logits;
  const bool in_order = only_outputs || step.has_outputs_in_order();
  const auto part = [&](int64_t first, int64_t count) -> Residual {
    if (!in_order)
      return gather_rows(*backend_, *last, step.output_rows.rows(first, count), activations_);
    return backend_->finish(*last), last->rows(first, count);
  };
  const auto num_wanted = [&](size_t i) {
    return state_.slot(known[i].slot).setup().num_prompt_logprobs;
  };
  for (size_t i = 0, end = 0; i < known.size(); i = end) {
    targets_.clear();
    const int32_t k = num_wanted(i);
    for (; end < known.size() && std::ssize(targets_) < max_rows && num_wanted(end) == k; ++end)
      targets_.push_back(known[end].target);
    const auto count = std::ssize(targets_);
    Residual some = part(num_drawn + static_cast<int64_t>(i), count);
    const Tensor known_logits = activations_.logits.rows(0, count);
    backend_->norm_matmul(known_logits, some, model_.norm, *model_.lm_head);
    backend_->token_logprobs(known_logits, targets_, k, logprobs);
  }
  if (num_drawn == 0) return logits;
  if (!in_order || num_drawn < last->num_tokens()) last = part(0, num_drawn);
  backend_->norm_sample(logits, *last, model_.norm, *model_.lm_head, step);
  return logits;
}

const StepOutput& ModelRunner::wait() {
  check(num_waited_ + (late_logits_ ? 1 : 0) < num_submitted_, "no complete step is in flight");
  Flight& oldest = flight(num_waited_);
  if (!oldest.slots.empty()) fetch(oldest);
  std::vector<Logprob>& logprobs = oldest.output.logprobs;
  logprobs.insert(logprobs.end(), oldest.known_logprobs.begin(), oldest.known_logprobs.end());
  oldest.output.done_time = steady_seconds();
  ++num_waited_;
  return oldest.output;
}

void ModelRunner::start_outputs(const StepInput& input, Flight& flight) {
  flight.slots.clear();
  flight.known_logprobs.clear();
  for (const OutputInput& output : input.outputs) {
    check(output.kind != OutputKind::kPooled, "hidden states are no outputs yet");
    const bool is_drawn = output.kind == OutputKind::kToken;
    const Slot& slot = state_.slot(output.slot);
    const StepRow& row = input.rows[to_size(output.row)];
    const int32_t k = is_drawn ? slot.setup().num_logprobs : slot.setup().num_prompt_logprobs;
    flight.output.values.push_back({.sequence = output.sequence,
                                    .kind = output.kind,
                                    .position = row.start + output.offset + 1,
                                    .num_logprobs = k + 1});
    if (is_drawn) flight.slots.emplace_back(output.slot, slot.num_starts());
  }
}

void ModelRunner::fetch(Flight& flight) {
  const size_t num_drawn = flight.slots.size();
  token_ids_.resize(num_drawn);
  status_.resize(num_drawn);
  backend_->fetch_samples(token_ids_, status_, flight.output.logprobs);
  for (size_t i = 0; i < num_drawn; ++i) {
    OutputValue& drawn = flight.output.values[i];
    drawn.token_id = token_ids_[i];
    drawn.status = status_[i];
    Slot& slot = state_.slot(flight.slots[i].first);
    const bool is_same = slot.num_starts() == flight.slots[i].second;
    if (drawn.status != RowStatus::kOk) drawn.num_logprobs = 0;
    if (is_same && !slot.is_complete()) drawn.status = RowStatus::kNoMemory;
    if (is_same) slot.push(token_ids_[i]);
  }
}

}  // namespace nanovllm
