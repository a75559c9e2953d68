#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanovllm/engine/scheduler.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "python/convert.h"
#include "python/views/views.h"

namespace nb = nanobind;

namespace nanovllm::python {

namespace {

int64_t number(nb::handle config, const char* name, int64_t otherwise) {
  if (!nb::hasattr(config, name)) return otherwise;
  int64_t value = 0;
  if (!nb::try_cast(nb::object(config.attr(name)), value))
    throw nb::type_error(fmt::format("{} must be a whole number", name).c_str());
  return value;
}

EngineConfig scheduler_config(nb::handle config, int64_t num_slots) {
  EngineConfig c;
  c.max_num_batched_tokens = number(config, "max_num_batched_tokens", 16384);
  c.max_num_seqs = number(config, "max_num_seqs", c.max_num_seqs);
  c.max_model_len = number(config, "max_model_len", 4096);
  for (const auto& [name, value] :
       {std::pair("max_num_batched_tokens", c.max_num_batched_tokens),
        std::pair("max_num_seqs", c.max_num_seqs), std::pair("max_model_len", c.max_model_len)})
    require(value >= 1 && value <= std::numeric_limits<int32_t>::max(),
            "{} is {}; it must be at least 1", name, value);
  // The engine refuses settings with which the oldest sequence could be stuck; nano-vLLM's
  // examples have small caches with its default lengths, so they are clamped.
  c.max_model_len = std::min(c.max_model_len, num_slots);
  c.max_num_seqs = std::min(c.max_num_seqs, c.max_num_batched_tokens);
  return c;
}

class SchedulerView {
 public:
  explicit SchedulerView(nb::handle config)
      : cache_(make_cache(number(config, "num_kvcache_blocks", -1),
                          number(config, "kvcache_block_size", kDefaultBlockSize),
                          number(config, "enable_prefix_caching", 1) != 0)),
        blocks_(cache_, &cache_->blocks()),
        config_(scheduler_config(config, blocks_->num_blocks() * blocks_->block_size())),
        scheduler_(config_, *cache_) {
    if (!nb::hasattr(config, "eos")) return;
    eos_ = config.attr("eos");
    if (int32_t one = 0; nb::try_cast(eos_, one)) end_tokens_ = {one};
    else end_tokens_ = to_token_ids(eos_, "eos");
  }
  ~SchedulerView() {
    for (auto& [id, object] : sequences_) view(object).take_back();
  }
  SchedulerView(const SchedulerView&) = delete;
  SchedulerView& operator=(const SchedulerView&) = delete;

  void add(const nb::object& object) {
    SequenceView& v = view(object);
    v.require_own("add it");
    Sequence& seq = *v.seq;
    require(!seq.is_finished() && seq.block_table.empty() && seq.num_generated() == 0,
            "sequence {} has blocks or an answer; a scheduler takes prompts", v.seq_id);
    require(seq.num_prompt_tokens < config_.max_model_len,
            "the prompt has {} tokens; with max_model_len {} it may have at most {}",
            seq.num_prompt_tokens, config_.max_model_len, config_.max_model_len - 1);
    v.set_blocks(blocks_);
    RequestParams params = {.given = seq.params->given,
                            .stop_ids = seq.params->given.stop_token_ids};
    if (!params.given.ignore_eos)
      params.stop_ids.insert(params.stop_ids.end(), end_tokens_.begin(), end_tokens_.end());
    std::ranges::sort(params.stop_ids);
    seq.params = std::make_shared<const RequestParams>(std::move(params));
    seq.id = seq.request_id = next_id_++;
    sequences_.emplace(seq.id, object);
    std::vector<std::unique_ptr<Sequence>> choices;
    choices.push_back(std::move(v.own));
    scheduler_.add(std::move(choices));
  }

  /// The sequences of the step, and whether it computes more than decodes.
  std::pair<nb::list, bool> schedule() {
    require(in_flight_.size() < 2, "two steps are in flight; call postprocess for the older one");
    Step step;
    scheduler_.schedule(step.plan);
    nb::list sequences;
    bool is_prefill = false;
    for (const ScheduledRow& row : step.plan.rows) {
      const nb::object object = sequences_.at(row.seq->id);
      view(object).num_scheduled = row.num_tokens;
      is_prefill |= row.num_tokens > 1 || row.start < row.seq->num_prompt_tokens;
      sequences.append(object);
      step.sequences.push_back(object);
    }
    if (!step.plan.empty()) in_flight_.push_back(std::move(step));
    require(!in_flight_.empty() || scheduler_.is_finished(),
            "no sequence can run: {} wait, and {} of {} blocks are free", scheduler_.num_waiting(),
            blocks_->num_free(), blocks_->num_blocks());
    return {sequences, is_prefill};
  }

  void postprocess(const nb::sequence& sequences, nb::handle token_ids, nb::handle /*is_prefill*/) {
    require(!in_flight_.empty(), "no step is in flight; call schedule first");
    Step& step = in_flight_.front();
    const std::vector<int32_t> ids = to_token_ids(token_ids, "token_ids");
    require(nb::len(sequences) == step.sequences.size(),
            "{} sequences; the oldest step in flight has {}", nb::len(sequences),
            step.sequences.size());
    require(ids.size() == step.sequences.size(),
            "{} token ids and {} sequences; give one for each, also where the step draws none",
            ids.size(), step.sequences.size());
    for (size_t i = 0; i < step.sequences.size(); ++i)
      require(nb::object(sequences[i]).is(step.sequences[i]),
              "sequence {} of the list is not that of the oldest step in flight", i);
    StepOutput output;
    for (const ScheduledOutput& drawn : step.plan.outputs)
      output.values.push_back(
          {.sequence = drawn.sequence,
           .kind = drawn.kind,
           .position = step.plan.rows[static_cast<size_t>(drawn.row)].start + drawn.offset + 1,
           .token_id = ids[static_cast<size_t>(drawn.row)]});
    std::vector<SequenceUpdate> updates;
    scheduler_.postprocess(step.plan, output, updates);
    if (in_flight_.size() == 1)  // with two steps, the numbers are those of the newer one
      for (const nb::object& object : step.sequences) view(object).num_scheduled = 0;
    for (const SequenceUpdate& update : updates)
      if (update.seq->is_finished()) give_back(update.seq->id);
    in_flight_.pop_front();
  }

  void abort(const nb::object& object) {
    SequenceView& v = view(object);
    require(!v.own && v.blocks == blocks_, "sequence {} is not in this scheduler", v.seq_id);
    const uint64_t id = v.seq->id;
    scheduler_.finish(*v.seq, FinishReason::kAbort);
    give_back(id);
  }

  nb::list with_status(SequenceStatus status) const {
    nb::list list;
    for (const auto& [id, object] : sequences_)
      if (view(object).seq->status == status) list.append(object);
    return list;
  }

  nb::dict stats() const {
    const SchedulerStats& s = scheduler_.stats();
    nb::dict dict;
    dict["steps"] = s.steps;
    dict["prefill_tokens"] = s.prefill_tokens;
    dict["decode_tokens"] = s.decode_tokens;
    dict["preemptions"] = s.preemptions;
    dict["prefix_queries"] = s.prefix_queries;
    dict["prefix_hits"] = s.prefix_hits;
    return dict;
  }

  bool is_finished() const { return scheduler_.is_finished() && in_flight_.empty(); }
  const Blocks& blocks() const { return blocks_; }
  const nb::object& eos() const { return eos_; }
  const EngineConfig& config() const { return config_; }

 private:
  struct Step {
    StepPlan plan;
    std::vector<nb::object> sequences;  // the sequences of plan.rows
  };

  static SequenceView& view(const nb::object& object) { return nb::cast<SequenceView&>(object); }
  void give_back(uint64_t id) {
    const auto at = sequences_.find(id);
    view(at->second).take_back();
    sequences_.erase(at);
  }

  std::shared_ptr<CacheManager> cache_;
  Blocks blocks_;
  EngineConfig config_;
  Scheduler scheduler_;
  nb::object eos_ = nb::int_(-1);
  std::vector<int32_t> end_tokens_;
  std::map<uint64_t, nb::object> sequences_;  // by the scheduler's ids: in the order of arrival
  std::deque<Step> in_flight_;
  uint64_t next_id_ = 0;
};

}  // namespace

void bind_scheduler(nb::module_& m) {
  using V = SchedulerView;
  nb::class_<V>(m, "Scheduler",
                "Chooses the sequences of each step: decodes first, then unfinished prefills, then "
                "new sequences, first come, first served.")
      .def(nb::init<nb::handle>(), nb::arg("config"))
      .def("add", &V::add, nb::arg("seq").noconvert())
      .def(
          "schedule", &V::schedule,
          "Decides a step. Returns its sequences, and whether it computes prompts (beside decodes, "
          "if there are any). A second step may be scheduled before the first is postprocessed.")
      .def("postprocess", &V::postprocess, nb::arg("seqs"), nb::arg("token_ids"),
           nb::arg("is_prefill") = nb::none(),
           "Appends the tokens that the oldest scheduled step has drawn, one for each sequence; "
           "where a prompt is not computed to its end, the token is ignored.")
      .def("abort", &V::abort, nb::arg("seq").noconvert(), "Ends a sequence and frees its blocks.")
      .def("is_finished", &V::is_finished)
      .def_prop_ro("waiting", [](const V& v) { return v.with_status(SequenceStatus::kWaiting); })
      .def_prop_ro("running", [](const V& v) { return v.with_status(SequenceStatus::kRunning); })
      .def_prop_ro("block_manager", &V::blocks)
      .def_prop_ro("eos", &V::eos, "Config.eos: an id, or several; -1 if there is none.")
      .def_prop_ro("stats", &V::stats, "Counts since the start.")
      .def_prop_ro("max_num_seqs", [](const V& v) { return v.config().max_num_seqs; })
      .def_prop_ro("max_model_len", [](const V& v) { return v.config().max_model_len; })
      .def_prop_ro("max_num_batched_tokens",
                   [](const V& v) { return v.config().max_num_batched_tokens; });
}

}  // namespace nanovllm::python
