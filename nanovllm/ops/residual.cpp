#include "nanovllm/ops/residual.h"

#include "nanovllm/base/check.h"

namespace nanovllm {

Tensor Residual::whole() const {
  check(state == State::kWhole, "a residual is read before its additions are finished");
  return sum_;
}

}  // namespace nanovllm
