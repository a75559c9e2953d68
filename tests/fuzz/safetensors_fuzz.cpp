// A checkpoint's weights. The input is a model.safetensors or, if it begins with a brace, the index
// of the shards.

#include "nanovllm/base/check.h"
#include "nanovllm/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz.h"

namespace nanovllm {
namespace {

void take_all(const std::string& folder, const std::map<std::string, SafetensorsEntry>& expected) {
  Checkpoint checkpoint(folder);
  for (const auto& [name, entry] : expected) {
    // A weight has one or two dimensions.
    if (entry.shape.empty() || entry.shape.size() > 2) continue;
    expect_user_errors_only([&] {
      const WeightRows tensor = checkpoint.take(name, entry.shape);
      check(static_cast<size_t>(tensor.num_rows()) * tensor.row_bytes() == entry.bytes,
            "{} has another size", name);
      std::vector<char> bytes(entry.bytes);
      tensor.read(0, tensor.num_rows(), bytes.data());  // each byte must be there
    });
  }
  checkpoint.require_all_taken([](const std::string& name) { return name.size() % 2 == 0; });
}

}  // namespace
}  // namespace nanovllm

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace nanovllm;
  static const InputFolder single, sharded;
  const std::string_view input = text_of(data, size);
  if (input.starts_with('{')) {
    static const bool written = [] {
      constexpr std::string_view kHeader =
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
      std::string shard = {static_cast<char>(kHeader.size()), 0, 0, 0, 0, 0, 0, 0};
      sharded.write("1.safetensors", shard + std::string(kHeader) + "1234");
      return true;
    }();
    (void)written;
    sharded.write("model.safetensors.index.json", input);
    expect_user_errors_only([&] {
      take_all(sharded.path(), {{"a", {.dtype = "F32", .shape = {1}, .offset = 0, .bytes = 4}}});
    });
    return 0;
  }
  single.write("model.safetensors", input);
  expect_user_errors_only([&] {
    const auto entries = parse_safetensors(input, size, "memory");
    for (const auto& [name, entry] : entries)
      check(entry.offset <= size && entry.bytes <= size - entry.offset, "{} is not in the file",
            printable(name));
    take_all(single.path(), entries);
  });
  return 0;
}
