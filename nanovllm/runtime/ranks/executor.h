#pragma once

#include <memory>
#include <string>

#include "nanovllm/base/config.h"
#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

struct EngineSetup;

/// The engine's interface to all ranks of the model: it takes steps and returns their outputs in
/// the same order (`order.steps`). At most two steps may be submitted and not waited for. One
/// thread at a time uses it.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Gives a step to every rank and returns without waiting for the step. `input` is not needed
  /// afterwards. After an exception, the executor cannot be used any more.
  virtual void submit(const StepInput& input) = 0;
  /// Gives the late part of the step that was submitted last to every rank. If the step has one
  /// (has_late()), this comes before the next submit() and before the wait() for the step
  /// (order.late).
  virtual void complete(const StepInput& late) = 0;
  /// The output of the oldest step not yet waited for, valid until the next submit(). Throws
  /// EngineDead, or what the step threw.
  virtual const StepOutput& wait() = 0;
};

/// Loads a model on all ranks: rank 0 in this process, each other rank in a process of its own.
/// Stores in `setup` what resolve_setup() returned. Throws UserError, or the error that made a rank
/// fail at its start.
std::unique_ptr<Executor> start_ranks(const std::string& model, const EngineConfig& config,
                                      EngineSetup& setup);

}  // namespace nanovllm
