#pragma once

#include <memory>
#include <vector>

#include "nanovllm/server/conversation/calls/call_reader.h"

// The forms in which models write calls.
namespace nanovllm::server {

using CallReaderPtr = std::unique_ptr<CallReader>;

/// The form of Qwen3 and of the Hermes models:
///   <tool_call> {"name": "f", "arguments": {...}} </tool_call>
/// If the answer ends after the JSON, the closing tag may be missing.
CallReaderPtr hermes_reader(OfferedTools tools);

/// The form of Qwen3-Coder:
///   <tool_call>
///   <function=f>
///   <parameter=a>
///   value
///   </parameter>
///   </function>
///   </tool_call>
/// The tags <tool_call> and </tool_call> may be missing, and so may a closing tag before the next
/// tag. A newline at each end of a value is dropped. The schema of the function gives the type of a
/// value. An answer that ends after a parameter ends with a call if no parameter that the schema
/// requires is missing.
CallReaderPtr xml_reader(OfferedTools tools);

/// The JSON of Llama 3 and xLAM, anywhere in the answer:
///   {"name": "f", "parameters": {...}}; {"name": "g", "parameters": {...}}
/// Several objects follow each other, after a semicolon, a comma or white space, or are a list.
/// Before them may be <|python_tag|>, <|python_start|>, [TOOL_CALLS] or ```json, after them
/// <|python_end|> or ```; not if `takes_tags` is false.
CallReaderPtr json_reader(OfferedTools tools, bool takes_tags = true);

/// Calls in Python, as Llama 4 writes them, anywhere in the answer:
///   [f(a=1, b="x"), g()]
/// The list may be between <|python_start|> and <|python_end|>. Unless the answer ends in it, all
/// of its elements must be calls of offered functions.
CallReaderPtr pythonic_reader(OfferedTools tools);

/// The form of Mistral's models:
///   [TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]
///   [TOOL_CALLS]f{...}[TOOL_CALLS]g[ARGS]{...}
/// [CALL_ID] and an id may follow the name.
CallReaderPtr mistral_reader(const OfferedTools& tools);

/// Reads calls in any of the forms. If two forms find calls, the one that ends first counts.
CallReaderPtr any_reader(std::vector<CallReaderPtr> readers);

}  // namespace nanovllm::server
