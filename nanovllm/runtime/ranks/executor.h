#pragma once

#include "nanovllm/runtime/step_io.h"

namespace nanovllm {

/// All ranks of the model as the engine sees them: steps go in, what they drew comes out, in the
/// same order. Up to two steps may be under way. Used from one thread.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Hands a step to every rank and returns at once; `input` is read before it returns.
  virtual void submit(const StepInput& input) = 0;
  /// The output of the oldest step not yet waited for, valid until the next call. Throws
  /// EngineDead, or what the step threw.
  virtual const StepOutput& wait() = 0;
};

}  // namespace nanovllm
