// Answers of models, with thoughts and calls in every form. The first byte of the input chooses the
// form, and the next ones where the answer is cut into pieces.

#include <algorithm>
#include <string>

#include "nanovllm/base/check.h"
#include "nanovllm/server/conversation/answer_parser.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace nanovllm;
using namespace nanovllm::server;

constexpr CallForm kForms[] = {CallForm::kTags, CallForm::kHermes,   CallForm::kXml,
                               CallForm::kJson, CallForm::kPythonic, CallForm::kMistral};

OfferedTools tools() {
  return OfferedTools::of(Json::parse(R"([{"function": {"name": "f", "parameters": {"properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": ["number", "null"]},
      "b": {"type": "boolean"}, "o": {"type": "object"}, "a": {"anyOf": [{"type": "array"},
      {"type": "string"}]}}, "required": ["s"]}}}, {"function": {"name": "g"}}])"));
}

std::string shown(const AnswerParts& parts) {
  std::string text = parts.reasoning + "\n---\n" + parts.content;
  for (const ToolCall& call : parts.calls)
    text += fmt::format("\n{} {}({})", call.index, call.name, call.arguments);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  static const OfferedTools offered = tools();
  AnswerParser::Options options;
  options.call_form = kForms[data[0] % std::size(kForms)];
  options.splits_reasoning = (data[1] & 1) != 0;
  options.begins_in_reasoning = (data[1] & 2) != 0;
  if ((data[1] & 4) == 0) options.tools = offered;
  options.parallel_calls = (data[1] & 8) == 0;
  if ((data[1] & 16) != 0) options.hidden_tags = {"<tool_call>", "[TOOL_CALLS]", "<|python_tag|>"};
  const std::string_view text = text_of(data + 3, size - 3);
  const AnswerParts whole = parse_answer(text, options);
  for (const ToolCall& call : whole.calls)
    check(parse_json(call.arguments, "arguments").is_object(), "the arguments are no object");
  if (options.tools.empty() && !options.splits_reasoning && options.hidden_tags.empty())
    check(whole.content == text && whole.calls.empty(), "the content is not the text");
  check(whole.reasoning.size() + whole.content.size() <= text.size(), "more text than there was");

  AnswerParser parser(options);
  AnswerParts joined;
  const size_t len = 1 + data[2] % 8;
  for (size_t at = 0; at < text.size(); at += len) joined.append(parser.add(text.substr(at, len)));
  joined.append(parser.finish());
  check(shown(joined) == shown(whole), "the pieces of {} bytes give other parts", len);
  return 0;
}
