// config.json and, after a line of dashes, generation_config.json.

#include "nanovllm/base/check.h"
#include "nanovllm/families/load.h"
#include "nanovllm/model/model_spec.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  std::string_view input = text_of(data, size);
  expect_user_errors_only([&] {
    const Json config = parse_json(take_part(input), "config.json");
    const Json generation_config =
        input.empty() ? Json() : parse_json(input, "generation_config.json");
    const ModelSpec c = parse_model_spec(config, generation_config, "folder");
    check(c.num_parameters() > 0 && c.kv_bytes_per_token(DType::kF32) > 0, "sizes that overflow");
    check(c.attention().num_heads % c.attention().num_kv_heads == 0 && c.ropes.front().theta > 0,
          "an invalid config");
  });
  return 0;
}
