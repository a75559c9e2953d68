#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "nanovllm/base/json.h"
#include "nanovllm/model/model_spec.h"

namespace nanovllm {

inline const std::string kRoot = NANOVLLM_SOURCE_DIR;

/// A temporary folder, which the destructor removes.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string path(const std::string& name = "") const;
  void write(const std::string& name, std::string_view bytes) const;

 private:
  std::filesystem::path path_;
};

/// The text of the UserError that `action` must throw; fails the test if it has more than one
/// line.
std::string user_error(const std::function<void()>& action);

/// A tensor for a file: float values that are stored as `dtype` (F32, BF16, F16).
struct TestTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// The bytes of a safetensors file with `tensors`, in this order.
std::string safetensors_file(const std::vector<TestTensor>& tensors);
/// The bytes of a safetensors file with this header and data, which need not be valid.
std::string safetensors_file(std::string_view header, std::string_view data);

/// Every tensor of a checkpoint for `config`, with small values that differ between elements.
std::vector<TestTensor> test_checkpoint(const Json& config, const std::string& dtype);

/// A copy of the bfloat16 checkpoint `from` with float32 weights, and with `more` features of the
/// MLP whose weights are zero: it computes the same function, so its goldens hold.
void write_wider_float32(const std::string& from, const TempFolder& to, int64_t more);

/// The config of a tiny Qwen3 model: 2 layers, hidden 16, 2 query heads, 1 KV head of 8, 24 tokens,
/// tied.
Json tiny_config();
/// The same as a Qwen3-MoE whose second layer has 3 experts of 24 columns, 2 of them for a token.
Json tiny_experts();
/// The same as a Llama; this architecture has a default for every key.
Json tiny_llama();

/// A config with another value for a key, or without it.
Json with(Json config, const char* key, Json value);
Json without(Json config, const char* key);

/// The configuration of a model in "folder".
ModelSpec parse(const Json& config, const Json& generation_config = {});
/// The error of a tiny_config() with this value.
std::string error_with(const char* key, Json value);

}  // namespace nanovllm
