#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "nanovllm/base/output.h"
#include "nanovllm/trace/trace_file.h"

namespace nanovllm {

/// What one call of LLMEngine::step() did, for the trace. It may submit a step, and it may receive
/// the output of a step; with async scheduling, of the one before. Sequences are named by their
/// ids, times are seconds on the steady clock.
struct StepTrace {
  /// When the parts of LLMEngine::step() ended. `processed` follows the masks of the late part, if
  /// the submitted step has one; else it is `masks`.
  double start = 0, scheduled = 0, submitted = 0, received = 0, masks = 0, processed = 0;

  uint64_t submitted_step = 0;  ///< its number; 0: none was submitted
  struct Row {
    uint64_t sequence = 0;
    int64_t start = 0, num_tokens = 0;
    bool is_decode = false;
  };
  std::vector<Row> rows;                      ///< of the submitted step
  std::vector<uint64_t> admitted, preempted;  ///< sequences that got or lost their slot

  uint64_t received_step = 0;               ///< 0: none was received
  double device_start = 0, device_end = 0;  ///< when the device computed it
  struct Drawn {
    uint64_t sequence = 0;
    bool runs = true;                ///< false: it was preempted before its token was received
    const char* finish_reason = "";  ///< its finish_reason, if it has ended
  };
  std::vector<Drawn> drawn;  ///< the sequences that got a token from the received step, or ended
};

/// Writes what the engine does as a trace: a track for the host with each call of
/// LLMEngine::step(), a track for the device with each step, a track for each sequence with its
/// phases (queue, prefill, decode, preempted), and counters. docs/learn.md explains how to read it.
/// The numbers of a step are the differences of EngineStats, so they add up to the engine's.
class Trace {
 public:
  /// Throws UserError if the file cannot be written.
  explicit Trace(const std::string& path);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// A sequence waits since `arrival`: choice number `choice` of a request with `num_choices`.
  void add(uint64_t sequence, uint64_t request, int32_t choice, size_t num_choices,
           int64_t num_prompt_tokens, double arrival);
  /// A sequence has ended. Nothing happens if it is unknown.
  void end(uint64_t sequence, double at, const char* finish_reason);
  /// `stats` are the engine's after the step.
  void step(const StepTrace& step, const EngineStats& stats);

 private:
  struct Lane {
    std::string label;
    std::string_view phase;  // empty: none was entered
    double since = 0;
  };
  /// A step that was submitted and not received.
  struct Submitted {
    uint64_t step = 0;
    std::vector<StepTrace::Row> rows;
  };
  void enter(uint64_t sequence, std::string_view phase, double at, std::string_view args = {});
  const std::string& label(uint64_t sequence) const { return lanes_.at(sequence).label; }
  std::string labels(const std::vector<uint64_t>& sequences) const;
  std::string step_args(const StepTrace& step, const EngineStats& stats) const;
  void host(const StepTrace& step, const EngineStats& stats);
  void device(const StepTrace& step);
  void counters(const StepTrace& step, const EngineStats& stats);

  TraceFile file_;
  std::unordered_map<uint64_t, Lane> lanes_;  // of the sequences that have not ended
  std::deque<Submitted> in_flight_;
  EngineStats last_;
  double last_time_ = 0, last_flush_ = 0;
};

}  // namespace nanovllm
