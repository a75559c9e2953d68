#pragma once

#include <optional>
#include <string_view>

#include "nanovllm/text/grammar/language/code_points.h"
#include "nanovllm/text/grammar/language/expressions.h"

namespace nanovllm::grammar {

/// The texts of a `format` of JSON Schema: date-time, date, time, duration, email, hostname, ipv4,
/// ipv6, uuid, uri. Nothing for a name that is not known.
std::optional<Expr> format(Expressions& e, std::string_view name, Coding coding);

}  // namespace nanovllm::grammar
