#include "nanovllm/trace/trace.h"

#include <fmt/format.h>

namespace nanovllm {

namespace {

constexpr int kEngineProcess = 1, kRequestsProcess = 2;  // processes
constexpr TraceFile::Track kHost = {kEngineProcess, 1}, kDevice = {kEngineProcess, 3};
constexpr uint64_t kFirstLane = 10;
constexpr std::string_view kQueue = "queue", kPrefill = "prefill", kDecode = "decode",
                           kPreempted = "preempted";
// A process that is killed loses at most this much of its trace.
constexpr double kSecondsBetweenFlushes = 0.25;
constexpr size_t kLargestBuffer = size_t{1} << 20;

TraceFile::Track lane_track(uint64_t sequence) { return {kRequestsProcess, kFirstLane + sequence}; }

}  // namespace

Trace::Trace(const std::string& path) : file_(path) {
  file_.name_process(kEngineProcess, "engine");
  file_.name_process(kRequestsProcess, "requests");
  file_.name_track(kHost, "host");
  file_.name_track(kDevice, "device");
}

Trace::~Trace() {
  try {
    while (!lanes_.empty()) end(lanes_.begin()->first, last_time_, "");
  } catch (const std::exception&) {  // out of memory: these slices have no end, as after a crash
  }
}

// -- the tracks of the sequences

void Trace::add(uint64_t sequence, uint64_t request, int32_t choice, size_t num_choices,
                int64_t num_prompt_tokens, double arrival) {
  std::string label = fmt::format("{}", request);
  if (num_choices > 1) label += fmt::format(".{}", choice);
  file_.name_track(lane_track(sequence), "request " + label);
  lanes_[sequence].label = label;
  enter(sequence, kQueue, arrival, fmt::format(R"("prompt_tokens":{})", num_prompt_tokens));
}

void Trace::enter(uint64_t sequence, std::string_view phase, double at, std::string_view args) {
  const auto at_lane = lanes_.find(sequence);
  if (at_lane == lanes_.end() || at_lane->second.phase == phase) return;
  Lane& lane = at_lane->second;
  if (!lane.phase.empty()) file_.end(lane_track(sequence), at);
  file_.begin(lane_track(sequence), phase, at, args);
  lane.phase = phase;
  lane.since = at;
}

void Trace::end(uint64_t sequence, double at, const char* finish_reason) {
  if (lanes_.erase(sequence) == 0) return;
  file_.end(lane_track(sequence), at, fmt::format(R"("finish_reason":"{}")", finish_reason));
}

// -- a step of the engine

void Trace::step(const StepTrace& step, const EngineStats& stats) {
  host(step, stats);
  for (const uint64_t sequence : step.preempted) enter(sequence, kPreempted, step.scheduled);
  for (const uint64_t sequence : step.admitted) enter(sequence, kPrefill, step.scheduled);
  if (step.received_step != 0) device(step);
  for (const StepTrace::Drawn& drawn : step.drawn) {
    if (*drawn.finish_reason != '\0') end(drawn.sequence, step.processed, drawn.finish_reason);
    else if (drawn.runs) enter(drawn.sequence, kDecode, step.processed);
  }
  counters(step, stats);
  last_ = stats;
  last_time_ = step.processed;
  if (lanes_.empty() || file_.num_buffered() > kLargestBuffer ||
      step.processed - last_flush_ > kSecondsBetweenFlushes) {
    file_.flush();
    last_flush_ = step.processed;
  }
}

std::string Trace::labels(const std::vector<uint64_t>& sequences) const {
  std::string list;
  for (const uint64_t sequence : sequences)
    list += fmt::format(R"({}"{}")", list.empty() ? "" : ",", label(sequence));
  return list;
}

/// The members of the JSON object that describes the call: what the submitted step computes, and
/// how the counts changed.
std::string Trace::step_args(const StepTrace& step, const EngineStats& stats) const {
  std::string args;
  const auto add = [&](const char* name, auto value) {
    args += fmt::format(R"({}"{}":{})", args.empty() ? "" : ",", name, value);
  };
  std::string decodes, prefills;
  for (const StepTrace::Row& row : step.rows) {
    std::string& list = row.is_decode ? decodes : prefills;
    const char* const comma = list.empty() ? "" : ",";
    if (row.is_decode) {
      list += fmt::format(R"({}"{}")", comma, label(row.sequence));
      continue;
    }
    // A sequence that is admitted starts behind what the prefix cache has of it.
    const bool is_admitted = lanes_.at(row.sequence).phase != kPrefill;
    list +=
        fmt::format(R"({}{{"request":"{}","cached":{},"start":{},"tokens":{}}})", comma,
                    label(row.sequence), is_admitted ? row.start : 0, row.start, row.num_tokens);
  }
  if (step.submitted_step != 0) add("step", step.submitted_step);
  add("decodes", "[" + decodes + "]");
  add("prefills", "[" + prefills + "]");
  add("admitted", "[" + labels(step.admitted) + "]");
  add("preempted", "[" + labels(step.preempted) + "]");
  add("prefill_tokens", stats.prefill_tokens - last_.prefill_tokens);
  add("decode_tokens", stats.decode_tokens - last_.decode_tokens);
  add("cached_tokens", stats.prefix_hits - last_.prefix_hits);
  add("blocks_taken", stats.blocks_taken - last_.blocks_taken);
  add("blocks_shared", stats.blocks_shared - last_.blocks_shared);
  add("blocks_freed", stats.blocks_freed - last_.blocks_freed);
  if (step.received_step != 0) add("output_of_step", step.received_step);
  add("generated_tokens", stats.generated_tokens - last_.generated_tokens);
  std::vector<uint64_t> finished;
  for (const StepTrace::Drawn& drawn : step.drawn)
    if (*drawn.finish_reason != '\0') finished.push_back(drawn.sequence);
  add("finished", "[" + labels(finished) + "]");
  return args;
}

void Trace::host(const StepTrace& step, const EngineStats& stats) {
  // The slice that contains the others comes first: slices that begin at the same time are nested
  // in the order of the file.
  file_.slice(kHost, "engine step", step.start, step.processed, step_args(step, stats));
  file_.slice(kHost, "schedule", step.start, step.scheduled);
  if (step.submitted_step != 0) {
    file_.slice(kHost, "submit", step.scheduled, step.submitted,
                fmt::format(R"("step":{})", step.submitted_step),
                {.id = step.submitted_step, .out = true});
    in_flight_.push_back({step.submitted_step, step.rows});
  }
  if (step.received_step == 0) return;
  const std::string args = fmt::format(R"("step":{})", step.received_step);
  file_.slice(kHost, "wait", step.submitted, step.received, args);
  file_.slice(kHost, "postprocess", step.received, step.masks, args,
              {.id = step.received_step, .in = true});
  if (step.processed > step.masks) file_.slice(kHost, "masks", step.masks, step.processed);
}

void Trace::device(const StepTrace& step) {
  const Submitted& submitted = in_flight_.front();
  int64_t num_tokens = 0;
  for (const StepTrace::Row& row : submitted.rows) num_tokens += row.num_tokens;
  file_.slice(kDevice, "step", step.device_start, step.device_end,
              fmt::format(R"("step":{},"sequences":{},"tokens":{})", submitted.step,
                          submitted.rows.size(), num_tokens),
              {.id = submitted.step, .in = true, .out = true});
  for (const StepTrace::Row& row : submitted.rows) {
    const auto lane = lanes_.find(row.sequence);
    // A sequence may have ended or lost its blocks since.
    if (row.is_decode || lane == lanes_.end() || lane->second.phase != kPrefill ||
        lane->second.since > step.device_start)
      continue;
    file_.slice(lane_track(row.sequence), fmt::format("{} tokens", row.num_tokens),
                step.device_start, step.device_end, fmt::format(R"("step":{})", submitted.step));
  }
  in_flight_.pop_front();
}

void Trace::counters(const StepTrace& step, const EngineStats& stats) {
  const auto count = [&](const char* name, double at, int64_t value, int64_t before) {
    if (value != before) file_.counter(kEngineProcess, name, at, value);
  };
  const auto computed = [](const EngineStats& s) { return s.prefill_tokens + s.decode_tokens; };
  count("tokens in the step", step.scheduled, computed(stats) - computed(last_), -1);
  count("running", step.processed, stats.num_running, last_.num_running);
  count("waiting", step.processed, stats.num_waiting, last_.num_waiting);
  count("free blocks", step.processed, stats.num_free_blocks, last_.num_free_blocks);
}

}  // namespace nanovllm
