#include "nanovllm/base/error.h"

#include "nanovllm/base/terminal/escape.h"

namespace nanovllm {

UserError::UserError(const std::string& text) : std::runtime_error(escape_controls(text)) {}

}  // namespace nanovllm
