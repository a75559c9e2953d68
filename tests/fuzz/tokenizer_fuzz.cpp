// The input is a tokenizer.json and, after lines of dashes, a text to encode, a
// tokenizer_config.json, and how often the text is repeated. Without the repetition, inputs are too
// short to show a time that is not linear. With it, such a time exceeds run.sh's time limit.

#include "nanovllm/text/tokenizer/tokenizer.h"

#include <charconv>

#include "nanovllm/base/check.h"
#include "nanovllm/base/json.h"
#include "nanovllm/base/strings/utf8.h"
#include "nanovllm/text/chat_template.h"
#include "tests/fuzz/fuzz.h"
#include "tests/json_file.h"

namespace nanovllm {
namespace {

constexpr size_t kMaxTextBytes = 128 << 10;

std::string repeated(std::string_view text, std::string_view count) {
  size_t times = 1;
  std::from_chars(count.data(), count.data() + count.size(), times);
  times = std::min(times, kMaxTextBytes / std::max<size_t>(text.size(), 1));
  std::string out(text);
  while (times-- > 1) out += text;
  return out;
}

void encode_and_decode(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<int32_t> ids;
  expect_user_errors_only([&] { ids = tokenizer.encode(text); });
  for (const bool skip : {true, false})
    check(is_utf8(tokenizer.decode(ids, skip)), "decoded text is not UTF-8");
  for (const int32_t id : ids) check(id >= 0, "encoded to the id {}", id);
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const InputFolder folder;
  std::string_view rest = text_of(data, size);
  const std::string_view tokenizer_json = take_part(rest), piece = take_part(rest);
  const std::string_view config = take_part(rest);
  const std::string text = repeated(piece, rest);

  expect_user_errors_only([&] {
    const auto tokenizer = Tokenizer::parse(tokenizer_json, "tokenizer.json");
    // The tokenizer has its own JSON scanner, which must refuse text that is not JSON.
    check(testing::is_json(tokenizer_json), "a text that is not JSON was accepted as a tokenizer");
    encode_and_decode(*tokenizer, text);
    encode_and_decode(*tokenizer, tokenizer_json.substr(0, 2000));
  });
  if (config.empty()) return 0;
  folder.write("tokenizer.json", tokenizer_json);
  folder.write("tokenizer_config.json", config);
  expect_user_errors_only([&] {
    const auto tokenizer = Tokenizer::load(folder.path());
    encode_and_decode(*tokenizer, text);
  });
  expect_user_errors_only([&] { ChatTemplate::load(folder.path()); });
  return 0;
}
