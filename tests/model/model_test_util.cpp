#include "tests/model/model_test_util.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "nanovllm/base/dtype.h"
#include "nanovllm/base/error.h"
#include "nanovllm/checkpoint/safetensors.h"

namespace nanovllm {

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "nanovllm_XXXXXX").string();
  EXPECT_NE(mkdtemp(name.data()), nullptr);
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempFolder::path(const std::string& name) const {
  return name.empty() ? path_.string() : (path_ / name).string();
}

void TempFolder::write(const std::string& name, std::string_view bytes) const {
  std::ofstream file(path_ / name, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good());
}

std::string user_error(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& e) {
    const std::string text = e.what();
    EXPECT_EQ(text.find_first_of("\n\r"), std::string::npos) << text;
    EXPECT_LT(text.size(), 1000u) << text;
    return text;
  }
  ADD_FAILURE() << "no UserError was thrown";
  return "";
}

std::string safetensors_file(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(header).append(data);
}

std::string safetensors_file(const std::vector<TestTensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const TestTensor& t : tensors) {
    const size_t begin = data.size();
    for (const float value : t.values) {
      const uint16_t half = t.dtype == "F16" ? f32_to_f16(value) : f32_to_bf16(value);
      if (t.dtype == "F32") data.append(reinterpret_cast<const char*>(&value), sizeof value);
      else data.append(reinterpret_cast<const char*>(&half), sizeof half);
    }
    header[t.name] = {
        {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return safetensors_file(text, data);
}

std::vector<TestTensor> test_checkpoint(const Json& config, const std::string& dtype) {
  const auto size = [&](const char* key) { return config.at(key).get<int64_t>(); };
  const int64_t hidden = size("hidden_size"), inner = size("intermediate_size"),
                q = size("num_attention_heads") * size("head_dim"),
                kv = size("num_key_value_heads") * size("head_dim");
  const std::string architecture = config.at("architectures").at(0).string();

  std::vector<TestTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<float> values;  // multiples of 2^-8 below 0.5: exact in every dtype
    for (int64_t i = 0; i < count; ++i)
      values.push_back(
          static_cast<float>((i * 37 + static_cast<int64_t>(tensors.size()) * 11) % 127 - 63) /
          256);
    tensors.push_back({name, dtype, std::move(shape), std::move(values)});
  };
  add("model.embed_tokens.weight", {size("vocab_size"), hidden});
  for (int64_t i = 0; i < size("num_hidden_layers"); ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    add(layer + "input_layernorm.weight", {hidden});
    add(layer + "self_attn.q_proj.weight", {q, hidden});
    add(layer + "self_attn.k_proj.weight", {kv, hidden});
    add(layer + "self_attn.v_proj.weight", {kv, hidden});
    add(layer + "self_attn.o_proj.weight", {hidden, q});
    if (architecture == "Qwen2ForCausalLM") {
      add(layer + "self_attn.q_proj.bias", {q});
      add(layer + "self_attn.k_proj.bias", {kv});
      add(layer + "self_attn.v_proj.bias", {kv});
    }
    if (architecture.starts_with("Qwen3")) {
      add(layer + "self_attn.q_norm.weight", {size("head_dim")});
      add(layer + "self_attn.k_norm.weight", {size("head_dim")});
    }
    add(layer + "post_attention_layernorm.weight", {hidden});
    const auto add_mlp = [&](const std::string& mlp, int64_t columns) {
      add(mlp + "gate_proj.weight", {columns, hidden});
      add(mlp + "up_proj.weight", {columns, hidden});
      add(mlp + "down_proj.weight", {hidden, columns});
    };
    const bool has_experts =
        config.contains("num_experts") && (i + 1) % size("decoder_sparse_step") == 0;
    if (has_experts) add(layer + "mlp.gate.weight", {size("num_experts"), hidden});
    for (int64_t e = 0; has_experts && e < size("num_experts"); ++e)
      add_mlp(layer + "mlp.experts." + std::to_string(e) + ".", size("moe_intermediate_size"));
    if (!has_experts) add_mlp(layer + "mlp.", inner);
  }
  add("model.norm.weight", {hidden});
  if (!config.at("tie_word_embeddings").get<bool>())
    add("lm_head.weight", {size("vocab_size"), hidden});
  return tensors;
}

void write_wider_float32(const std::string& from, const TempFolder& to, int64_t more) {
  const auto text_of = [](const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  for (const auto& file : std::filesystem::directory_iterator(from)) {
    const std::string name = file.path().filename().string();
    const std::string text = text_of(file.path());
    if (name == "config.json") {
      Json config = parse_json(text, name);
      config["intermediate_size"] = config["intermediate_size"].get<int64_t>() + more;
      for (const char* key : {"dtype", "torch_dtype"})
        if (config.contains(key)) config[key] = "float32";
      to.write(name, config.dump());
      continue;
    }
    if (!name.ends_with(".safetensors")) {
      to.write(name, text);
      continue;
    }
    std::vector<TestTensor> tensors;
    for (const auto& [tensor, entry] : parse_safetensors(text, text.size(), name)) {
      TestTensor t = {tensor, "F32", entry.shape, {}};
      const bool is_wider_row = tensor.ends_with("down_proj.weight");
      const auto append_zeros = [&](int64_t count) {
        t.values.insert(t.values.end(), static_cast<size_t>(count), 0.0f);
      };
      for (size_t i = 0; i < entry.bytes / 2; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, &text[entry.offset + 2 * i], sizeof bits);
        t.values.push_back(bf16_to_f32(bits));
        if (is_wider_row && static_cast<int64_t>(i + 1) % entry.shape[1] == 0) append_zeros(more);
      }
      if (is_wider_row) t.shape[1] += more;
      if (tensor.ends_with("gate_proj.weight") || tensor.ends_with("up_proj.weight")) {
        t.shape[0] += more;
        append_zeros(more * t.shape[1]);
      }
      tensors.push_back(std::move(t));
    }
    to.write(name, safetensors_file(tensors));
  }
}

Json tiny_config() {
  return {{"architectures", {"Qwen3ForCausalLM"}},
          {"hidden_size", 16},
          {"intermediate_size", 32},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 8},
          {"vocab_size", 24},
          {"max_position_embeddings", 64},
          {"tie_word_embeddings", true},
          {"torch_dtype", "bfloat16"}};
}

Json tiny_experts() {
  Json config = tiny_config();
  config.update({{"architectures", {"Qwen3MoeForCausalLM"}},
                 {"num_experts", 3},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 24},
                 {"decoder_sparse_step", 2}});
  return config;
}

Json tiny_llama() { return with(tiny_config(), "architectures", {"LlamaForCausalLM"}); }

Json with(Json config, const char* key, Json value) {
  config[key] = std::move(value);
  return config;
}

Json without(Json config, const char* key) {
  config.erase(key);
  return config;
}

ModelSpec parse(const Json& config, const Json& generation_config) {
  return parse_model_spec(config, generation_config, "folder");
}

std::string error_with(const char* key, Json value) {
  return user_error([&] { parse(with(tiny_config(), key, std::move(value))); });
}

}  // namespace nanovllm
