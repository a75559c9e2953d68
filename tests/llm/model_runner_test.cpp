#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "digit_constraint.h"
#include "goldens.h"
#include "nanovllm/engine/llm_engine.h"
#include "nanovllm/ops/cpu/cpu_backend.h"
#include "nanovllm/runtime/model_runner.h"
#include "nanovllm/runtime/ranks/local_executor.h"

namespace nanovllm::testing {
namespace {

/// A CPU backend that behaves like a GPU for ModelRunner: it has graphs, whose sizes it records and
/// whose padding it removes, and its calls can fail.
class GraphsOnTheCpu : public cpu::CpuBackend {
 public:
  struct Seen {
    std::map<int64_t, int> replays;  // by size
    int num_steps = 0, num_padded = 0;
    int fail_begin = -1, fail_fetch = -1, not_finite = -1;  // numbers of steps
    bool fail_allocate = false;
  };
  explicit GraphsOnTheCpu(Seen& seen) : CpuBackend(2), seen_(seen) {}

  bool replays() const override { return true; }
  void replay(int64_t size, const std::function<void()>& enqueue) override {
    ++seen_.replays[size];
    EXPECT_EQ(size, padded_to_);
    enqueue();
  }
  Buffer allocate(size_t bytes) override {
    if (seen_.fail_allocate && bytes > (size_t{32} << 20)) throw UserError("no memory");
    return CpuBackend::allocate(bytes);
  }
  void begin_step(const KvCache& kv) override {
    if (seen_.num_steps++ == seen_.fail_begin) throw std::runtime_error("the device fell off");
    padded_to_ = step_.num_seqs();
    const auto padding = std::ranges::find(step_.rows, -1, &StepRow::slot);
    const auto n = static_cast<size_t>(padding - step_.rows.begin());
    if (padding != step_.rows.end()) {
      ++seen_.num_padded;
      EXPECT_EQ(step_.outputs.size(), step_.rows.size());
      for (size_t i = n; i < step_.rows.size(); ++i) {
        EXPECT_EQ(step_.rows[i].slot, -1);
        EXPECT_EQ(step_.rows[i].num_tokens, 1);
        EXPECT_EQ(step_.rows[i].store, 0);     // writes no key
        EXPECT_EQ(step_.outputs[i].slot, -1);  // and no token
        EXPECT_EQ(step_.outputs[i].row, static_cast<int32_t>(i));
      }
      step_.rows.resize(n);
      step_.token_ids.resize(n);
      step_.outputs.resize(n);
      step_.samples.resize(n);
    }
    copy_lists();
    CpuBackend::begin_step(kv);
  }
  void sample(Tensor logits, const Step& step) override {
    if (seen_.num_steps == seen_.not_finite) logits.as<float>()[0] = NAN;
    CpuBackend::sample(logits, step);
  }
  void fetch_samples(std::span<int32_t> token_ids, std::span<RowStatus> status,
                     std::vector<Logprob>& logprobs) override {
    if (seen_.num_steps > seen_.fail_fetch && seen_.fail_fetch >= 0)
      throw std::runtime_error("the device fell off");
    CpuBackend::fetch_samples(token_ids, status, logprobs);
  }

 private:
  /// As a device does that queues steps: the slots change when an earlier step is waited for.
  void copy_lists() {
    lists_.assign(step_.samples.size(), {});
    for (size_t i = 0; i < lists_.size(); ++i) {
      SampleRow& row = step_.samples[i];
      lists_[i].counts.assign(row.counts.begin(), row.counts.end());
      row.counts = lists_[i].counts;
      lists_[i].masked_ids.assign(row.masked_ids.begin(), row.masked_ids.end());
      row.masked_ids = lists_[i].masked_ids;
      lists_[i].masked_after.assign(row.masked_after.begin(), row.masked_after.end());
      row.masked_after = lists_[i].masked_after;
    }
  }

  struct Lists {
    std::vector<TokenCount> counts;
    std::vector<int32_t> masked_ids;
    std::vector<MaskedAfter> masked_after;
  };
  std::vector<Lists> lists_;  // of the newest step
  Seen& seen_;
  int64_t padded_to_ = 0;
};

std::unique_ptr<LLMEngine> engine_on(std::unique_ptr<Backend> backend, const EngineConfig& config) {
  const std::string folder = model_folder("llama");
  const EngineSetup setup = resolve_setup(folder, config, *backend);
  return std::make_unique<LLMEngine>(
      setup, std::make_unique<ModelRunner>(folder, setup, std::move(backend)), nullptr);
}

EngineConfig small_config() {
  EngineConfig config;
  config.device = "cpu";
  config.dtype = "float32";
  config.block_size = 16;
  config.max_num_seqs = 5;  // slots pass from sequence to sequence
  config.num_gpu_blocks_override = 40;
  return config;
}

std::map<uint64_t, RequestOutput> run(LLMEngine& engine, size_t num_requests = 120) {
  const std::vector<Json> rows = goldens("llama");
  for (size_t i = 0; i < num_requests; ++i) {
    SamplingParams params;
    params.max_tokens = 30;
    params.ignore_eos = true;
    // Ends that the scheduler cannot foresee: a row is in flight when its slot gets another
    // sequence.
    params.stop_token_ids = {12};
    params.allowed_token_ids = {10, 11, 12, 13, 14, 15};  // so that tokens are soon repeated
    params.temperature = i % 2 == 0 ? 0 : 1.5;
    params.seed = i;
    // These depend on the token in flight, which the host does not know.
    params.presence_penalty = i % 3 == 0 ? 0 : 1.5;
    if (i % 3 == 1) params.repetition_penalty = 1.8;
    if (i % 4 == 0) params.logprobs = 2;
    if (i % 5 == 0) params.n = 2;
    engine.add_request(rows[i % rows.size()]["prompt_token_ids"].get<std::vector<int32_t>>(),
                       params);
  }
  std::map<uint64_t, RequestOutput> outputs;
  while (!engine.is_finished())
    for (const RequestUpdate& update : engine.step())
      if (update.finished) outputs[update.request_id] = *update.finished;
  return outputs;
}

void expect_same(const std::map<uint64_t, RequestOutput>& got,
                 const std::map<uint64_t, RequestOutput>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (const auto& [id, request] : expected) {
    EXPECT_EQ(got.at(id).token_ids, request.token_ids) << id;
    EXPECT_EQ(got.at(id).finish_reason, request.finish_reason) << id;
    ASSERT_EQ(got.at(id).outputs.size(), request.outputs.size()) << id;
    for (size_t i = 0; i < request.outputs.size(); ++i)
      EXPECT_EQ(got.at(id).outputs[i].token_ids, request.outputs[i].token_ids) << id;
    ASSERT_EQ(got.at(id).logprobs.size(), request.logprobs.size()) << id;
    for (size_t i = 0; i < request.logprobs.size(); ++i)
      EXPECT_EQ(got.at(id).logprobs[i].at(0).logprob, request.logprobs[i].at(0).logprob) << id;
  }
}

// As on a GPU, a step is launched before the tokens of the previous one are fetched.
TEST(ModelRunner, LaunchingAheadGivesTheSameAnswers) {
  EngineConfig config = small_config();
  const auto ahead = engine_on(make_backend(config), config);
  LLMEngine plain = LLMEngine::load(model_folder("llama"), config);
  expect_same(run(*ahead), run(plain));
  EXPECT_GT(ahead->stats().steps, 0);
}

// Steps with one token for each sequence are padded to a few sizes; other steps are not padded.
TEST(ModelRunner, ReplayedStepsGiveTheSameAnswers) {
  int num_padded = 0;
  for (const int64_t most : {5, 40}) {
    EngineConfig config = small_config();
    config.max_num_seqs = most;
    config.num_gpu_blocks_override = 12 * most;
    GraphsOnTheCpu::Seen seen, unused;
    const auto graphs = engine_on(std::make_unique<GraphsOnTheCpu>(seen), config);
    LLMEngine plain = LLMEngine::load(model_folder("llama"), config);
    expect_same(run(*graphs), run(plain));
    num_padded += seen.num_padded;
    for (const auto& [size, count] : seen.replays)
      EXPECT_TRUE(size == 1 || size == 2 || size == 4 || size == 8 || size % 16 == 0 ||
                  size == most)
          << size;
    EXPECT_GE(seen.replays.size(), most == 5 ? 3u : 5u);

    config.enforce_eager = true;
    run(*engine_on(std::make_unique<GraphsOnTheCpu>(unused), config), 10);
    EXPECT_TRUE(unused.replays.empty());
  }
  EXPECT_GT(num_padded, 0);
}

// If the last piece of a chunked prompt is one token, its step is replayed as in decode. No prompt
// token follows it, so it needs no log-probabilities of the prompt.
TEST(ModelRunner, PromptLogprobsAreTheSameIfTheLastTokenIsReplayed) {
  EngineConfig config = small_config();
  config.max_num_batched_tokens = 8;
  GraphsOnTheCpu::Seen seen;
  const auto graphs = engine_on(std::make_unique<GraphsOnTheCpu>(seen), config);
  LLMEngine plain = LLMEngine::load(model_folder("llama"), config);
  std::vector<RequestOutput> outputs;
  for (LLMEngine* engine : {graphs.get(), &plain}) {
    SamplingParams params;
    params.max_tokens = 1;
    params.prompt_logprobs = 0;
    engine->add_request({1, 2, 3, 4, 5, 6, 7, 8, 9}, params);
    while (!engine->is_finished())
      for (const RequestUpdate& update : engine->step())
        if (update.finished) outputs.push_back(*update.finished);
  }
  ASSERT_EQ(outputs.size(), 2u);
  ASSERT_EQ(outputs[0].prompt_logprobs.size(), 9u);
  for (size_t i = 1; i < 9; ++i)
    EXPECT_EQ(outputs[0].prompt_logprobs[i].at(0).logprob,
              outputs[1].prompt_logprobs[i].at(0).logprob);
  EXPECT_FALSE(seen.replays.empty());
}

// order.late: the mask of a token depends on the one before it, which the host reads only after it
// has submitted the step.
TEST(ModelRunner, ConstraintsMaskTheTokenAfterTheOneThatTheyAcceptedLast) {
  const std::vector<Json> rows = goldens("llama");
  std::vector<std::map<uint64_t, RequestOutput>> all;
  for (const std::string kind : {"graphs", "queue", "step by step"}) {
    EngineConfig config = small_config();
    config.async_scheduling = kind != "step by step";
    config.num_gpu_blocks_override = 20;  // sequences are preempted
    GraphsOnTheCpu::Seen seen;
    std::unique_ptr<Backend> backend =
        kind == "graphs" ? std::make_unique<GraphsOnTheCpu>(seen) : make_backend(config);
    const std::string folder = model_folder("llama");
    const EngineSetup setup = resolve_setup(folder, config, *backend);
    std::unique_ptr<Executor> executor =
        std::make_unique<ModelRunner>(folder, setup, std::move(backend));
    if (kind != "graphs") executor = std::make_unique<LocalExecutor>(std::move(executor));
    const auto engine = std::make_unique<LLMEngine>(setup, std::move(executor), nullptr);
    for (size_t i = 0; i < 40; ++i) {
      SamplingParams params;
      params.max_tokens = 25;
      params.ignore_eos = true;
      params.temperature = i % 2 == 0 ? 0 : 1;
      params.seed = i;
      if (i % 3 == 0) params.n = 2;
      if (i % 5 == 0) params.presence_penalty = 1;
      if (i % 2 == 0) params.frequency_penalty = 0.5;
      if (i % 4 == 0) params.allowed_token_ids = {10, 11, 12};
      NewRequest request = engine->request_factory()->make(
          rows[i % rows.size()]["prompt_token_ids"].get<std::vector<int32_t>>(), params);
      if (i % 4 != 0)  // others run beside them
        for (const auto& choice : request.choices)
          choice->constraint = std::make_unique<DigitConstraint>();
      engine->add(std::move(request));
    }
    std::map<uint64_t, RequestOutput>& outputs = all.emplace_back();
    while (!engine->is_finished())
      for (const RequestUpdate& update : engine->step())
        if (update.finished) outputs[update.request_id] = *update.finished;
    EXPECT_GT(engine->stats().preemptions, 0);
    for (const auto& [id, output] : outputs)
      for (const auto& choice : output.outputs)
        for (size_t t = 0; id % 4 != 0 && t < choice.token_ids.size(); ++t)
          EXPECT_EQ(choice.token_ids[t] % 10, static_cast<int32_t>(t % 10)) << kind << " " << id;
  }
  expect_same(all[1], all[0]);
  expect_same(all[2], all[0]);
}

TEST(ModelRunner, FailureOfTheDeviceEndsTheEngine) {
  for (const bool at_launch : {true, false}) {
    GraphsOnTheCpu::Seen seen;
    (at_launch ? seen.fail_begin : seen.fail_fetch) = 4;
    const auto engine = engine_on(std::make_unique<GraphsOnTheCpu>(seen), small_config());
    // Plain requests: their tokens are fetched when the engine waits for the step.
    SamplingParams params;
    params.max_tokens = 30;
    params.ignore_eos = true;
    for (int32_t i = 0; i < 3; ++i) engine->add_request(std::vector<int32_t>{1, 2, i}, params);
    EXPECT_THROW(while (!engine->is_finished()) engine->step(), std::exception);
    const int num_steps = seen.num_steps;
    EXPECT_THROW(engine->step(), EngineDead);
    EXPECT_EQ(seen.num_steps, num_steps);  // it is left alone
  }
}

TEST(ModelRunner, RowThatIsNotFiniteEndsOnlyItsRequest) {
  GraphsOnTheCpu::Seen seen;
  seen.not_finite = 12;
  const auto engine = engine_on(std::make_unique<GraphsOnTheCpu>(seen), small_config());
  int num_errors = 0, num_others = 0;
  for (const auto& [id, request] : run(*engine, 20))
    ++(request.has_error() ? num_errors : num_others);
  EXPECT_EQ(num_errors, 1);
  EXPECT_EQ(num_others, 19);
}

TEST(ModelRunner, CacheThatDoesNotFitIsAUserError) {
  GraphsOnTheCpu::Seen seen;
  EngineConfig config = small_config();
  config.num_gpu_blocks_override = 4000;
  seen.fail_allocate = true;
  try {
    engine_on(std::make_unique<GraphsOnTheCpu>(seen), config);
    ADD_FAILURE() << "no exception";
  } catch (const UserError& e) {
    EXPECT_NE(std::string(e.what()).find("the KV cache of 4000 blocks: no memory"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace nanovllm::testing
