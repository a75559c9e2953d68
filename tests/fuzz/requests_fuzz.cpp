// The bodies of requests to the server, each read as all of the server's APIs would, for the demo
// model.

#include "nanovllm/base/check.h"
#include "nanovllm/params/generation_config.h"
#include "nanovllm/server/anthropic/request.h"
#include "nanovllm/server/http/api_error.h"
#include "nanovllm/server/openai/limits.h"
#include "nanovllm/text/chat_template.h"
#include "nanovllm/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace nanovllm;
using namespace nanovllm::server;

/// Calls `read`. An error must be one line, and its response JSON in both forms.
template <class Read>
void expect_one_error(Read&& read) {
  std::string what;
  try {
    read();
    return;
  } catch (const ApiError& e) {
    for (const char* path : {"/v1/completions", "/v1/messages"}) parse_json(e.body(path), path);
    what = e.what();
  } catch (const UserError& e) {
    what = e.what();
  }
  check(!what.empty() && what.find('\n') == std::string::npos, "an error of several lines: {}",
        what);
}

void read_conversation(const ChatRequest& request) {
  static const auto tokenizer = Tokenizer::load(kTinyTales);
  static const auto chat_template = ChatTemplate::load(kTinyTales);
  static EncodedParts parts(1 << 20);
  request.params.validate();
  const std::string text = chat_template->prompt(request.variables);
  const auto ids = tokenizer->encode(text, request.add_special_tokens,
                                     {.known = &parts, .owner = request.cache_salt});
  check(ids == tokenizer->encode(text, request.add_special_tokens), "other ids of {}", text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const SamplingParams defaults = GenerationConfig().defaults(kTinyTales);
  Json body;
  try {
    body = parse_json(text_of(data, size), "the body");
  } catch (const UserError&) {
    return 0;
  }
  expect_one_error([&] {
    const CompletionRequest request = completion_request(body, defaults);
    request.params.validate();
    check(!request.prompts.empty() && request.prompts.size() <= kMaxPrompts, "{} prompts",
          request.prompts.size());
    check(request.params.n <= kMaxChoices, "{} choices", request.params.n);
  });
  expect_one_error([&] { read_conversation(chat_request(body, defaults)); });
  for (const MessagesRoute route : {MessagesRoute::kMessages, MessagesRoute::kCountTokens})
    expect_one_error([&] {
      const ChatRequest request = messages_request(body, defaults, route);
      check(request.params.n == 1, "{} choices", request.params.n);
      read_conversation(request);
    });
  return 0;
}
