#include "nanovllm/families/load.h"
#include "nanovllm/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "nanovllm/checkpoint/checkpoint.h"
#include "nanovllm/checkpoint/safetensors.h"
#include "tests/model/model_test_util.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// The number of elements of all bfloat16 tensors in the safetensors files of a folder.
int64_t elements_in(const std::string& folder) {
  int64_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") continue;
    for (const auto& [name, entry] : read_safetensors_header(InputFile(file.path().string())))
      count += static_cast<int64_t>(entry.bytes) / 2;
  }
  return count;
}

TEST(ModelSpec, ReadsTinyTales) {
  const ModelSpec c = load_model_spec(kRoot + "/models/tiny-tales");
  EXPECT_EQ(c.architecture, "Qwen3ForCausalLM");
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.layers.front().mlp.size, 768);
  EXPECT_EQ(c.num_layers(), 6);
  EXPECT_EQ(c.attention().num_heads, 4);
  EXPECT_EQ(c.attention().num_kv_heads, 2);
  EXPECT_EQ(c.attention().head_dim, 128);
  EXPECT_EQ(c.vocab_size, 8192);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_FLOAT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.ropes.front().theta, 1e6);
  EXPECT_EQ(c.ropes.front().scaling, RopeConfig::Scaling::kNone);
  EXPECT_TRUE(c.tie_word_embeddings);
  EXPECT_EQ(c.attention().qk_norm, QkNorm::kHead);
  EXPECT_FALSE(c.attention().qkv_bias);
  EXPECT_EQ(c.dtype, DType::kBF16);
  EXPECT_EQ(c.num_parameters(), elements_in(kRoot + "/models/tiny-tales"));
}

TEST(ModelSpec, ReadsTheVariants) {
  const std::string variants = kRoot + "/tests/variants/";
  const ModelSpec qwen3 = load_model_spec(variants + "qwen3-sharded");
  EXPECT_EQ(qwen3.attention().head_dim, 64);
  EXPECT_EQ(qwen3.attention().q_size(), 512);
  EXPECT_FALSE(qwen3.tie_word_embeddings);
  EXPECT_EQ(qwen3.num_parameters(), 918784);  // total_parameters of the index

  const ModelSpec qwen2 = load_model_spec(variants + "qwen2");
  EXPECT_EQ(qwen2.attention().head_dim, 32);
  EXPECT_TRUE(qwen2.attention().qkv_bias);
  EXPECT_EQ(qwen2.attention().qk_norm, QkNorm::kNone);
  EXPECT_EQ(qwen2.num_parameters(), elements_in(variants + "qwen2"));

  const ModelSpec llama = load_model_spec(variants + "llama");
  EXPECT_EQ(llama.attention().num_kv_heads, 1);
  EXPECT_EQ(llama.attention().qk_norm, QkNorm::kNone);
  EXPECT_FALSE(llama.attention().qkv_bias);
  EXPECT_EQ(llama.dtype, DType::kBF16);
  EXPECT_EQ(llama.ropes.front().scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(llama.ropes.front().theta, 500000);
  EXPECT_EQ(llama.ropes.front().factor, 8);
  EXPECT_EQ(llama.ropes.front().low_freq_factor, 1);
  EXPECT_EQ(llama.ropes.front().high_freq_factor, 4);
  EXPECT_EQ(llama.ropes.front().original_max_position_embeddings, 256);
  EXPECT_EQ(llama.num_parameters(), elements_in(variants + "llama"));
}

TEST(ModelSpec, CountsTheParametersOfQwen3) {
  const std::string shapes = kRoot + "/bench/shapes/";
  const std::pair<const char*, int64_t> published[] = {
      {"Qwen3-0.6B", 596'049'920}, {"Qwen3-1.7B", 1'720'574'976}, {"Qwen3-4B", 4'022'468'096},
      {"Qwen3-8B", 8'190'735'360}, {"Qwen3-14B", 14'768'307'200}, {"Qwen3-32B", 32'762'123'264}};
  for (const auto& [name, parameters] : published) {
    const ModelSpec c = load_model_spec(shapes + name);
    EXPECT_EQ(c.num_parameters(), parameters) << name;
    EXPECT_EQ(c.max_position_embeddings, 40960) << name;
  }
  const ModelSpec small = load_model_spec(shapes + "Qwen3-0.6B");
  EXPECT_EQ(small.kv_bytes_per_token(DType::kBF16), 114688u);
  EXPECT_EQ(small.kv_bytes_per_token(DType::kF32), 229376u);
}

TEST(ModelSpec, FolderOfAnArchitectureThatIsNotSupportedIsRefused) {
  const TempFolder folder;
  folder.write("config.json",
               with(tiny_config(), "architectures", {"Qwen3NextForCausalLM"}).dump());
  EXPECT_THAT(user_error([&] { load_model_spec(folder.path()); }),
              AllOf(HasSubstr("config.json"), HasSubstr("Qwen3NextForCausalLM"),
                    HasSubstr("supported are Qwen3ForCausalLM, Qwen3MoeForCausalLM, Qwen2For")));
}

// The published file, without a generation_config.json and with keys that no other family has.
TEST(ModelSpec, ReadsLlama32) {
  const TempFolder folder;
  folder.write("config.json", R"({
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 128000, "eos_token_id": 128001,
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "model_type": "llama",
    "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
    "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 128256,
    "transformers_version": "4.45.0.dev0", "tokenizer": "pretrained_fast"})");
  const ModelSpec c = load_model_spec(folder.path());
  EXPECT_EQ(c.num_parameters(), 1'235'814'400);
  EXPECT_THAT(c.eos_token_ids, ElementsAre(128001));
}

/// Which of a model's layers have a rotary embedding.
std::vector<bool> rotated(const ModelSpec& spec) {
  std::vector<bool> result;
  for (const LayerSpec& layer : spec.layers)
    result.push_back(!spec.ropes[layer.attention.rope].is_identity);
  return result;
}

TEST(ModelSpec, ReadsSmolLm3) {
  const Json config = {{"architectures", {"SmolLM3ForCausalLM"}},
                       {"vocab_size", 128256},
                       {"hidden_size", 2048},
                       {"intermediate_size", 11008},
                       {"num_hidden_layers", 36},
                       {"num_attention_heads", 16}};
  ModelSpec spec = parse(config);  // the published shape: the other keys have their defaults
  EXPECT_EQ(spec.num_parameters(), 3'075'098'624);
  EXPECT_EQ(spec.attention().num_kv_heads, 4);
  EXPECT_TRUE(spec.tie_word_embeddings);
  EXPECT_EQ(spec.ropes[0].theta, 2'000'000);
  for (size_t i = 0; i < spec.layers.size(); ++i) EXPECT_EQ(rotated(spec)[i], i % 4 != 3) << i;
  EXPECT_EQ(spec.rope_bytes_per_position(), 2u * 128 * 4);

  Json small = with(config, "num_hidden_layers", 3);
  EXPECT_THAT(rotated(parse(with(small, "no_rope_layer_interval", 2))),
              ElementsAre(true, false, true));
  // A longer list is allowed.
  EXPECT_THAT(rotated(parse(with(small, "no_rope_layers", {0, 1, 1, 0}))),
              ElementsAre(false, true, true));
  for (const Json& wrong : {Json({1, 0}), Json({1, 0, 2}), Json({1, 0, true}), Json("1"), Json(1)})
    EXPECT_THAT(user_error([&] { parse(with(small, "no_rope_layers", wrong)); }),
                HasSubstr("folder/config.json: no_rope_layers"));
  EXPECT_THAT(user_error([&] { parse(with(small, "no_rope_layer_interval", 0)); }),
              HasSubstr("no_rope_layer_interval is 0"));
}

TEST(ModelSpec, ReadsOlmo2) {
  const Json config = {{"architectures", {"Olmo2ForCausalLM"}},
                       {"vocab_size", 100352},
                       {"hidden_size", 4096},
                       {"intermediate_size", 11008},
                       {"num_hidden_layers", 32},
                       {"num_attention_heads", 32}};
  const ModelSpec spec = parse(config);
  EXPECT_EQ(spec.num_parameters(), 7'298'617'344);
  EXPECT_EQ(spec.attention().num_kv_heads, 32);
  EXPECT_EQ(spec.attention().qk_norm, QkNorm::kWhole);
  EXPECT_EQ(spec.layers[0].norms.before_mlp, nullptr);
  EXPECT_STREQ(spec.layers[0].norms.after_mlp, "post_feedforward_layernorm");
  EXPECT_FLOAT_EQ(spec.rms_norm_eps, 1e-5f);
  EXPECT_EQ(spec.max_position_embeddings, 2048);
}

TEST(ModelSpec, FillsAbsentKeysAsTransformersDoes) {
  Json config = tiny_config();
  for (const char* key : {"num_key_value_heads", "head_dim", "max_position_embeddings",
                          "tie_word_embeddings", "torch_dtype"})
    config.erase(key);
  config["num_attention_heads"] = 32;
  config["hidden_size"] = 512;

  config["architectures"] = {"LlamaForCausalLM"};
  ModelSpec c = parse(config);
  EXPECT_EQ(c.attention().num_kv_heads, 32);
  EXPECT_EQ(c.attention().head_dim, 16);
  EXPECT_EQ(c.max_position_embeddings, 2048);
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_EQ(c.dtype, DType::kF32);
  EXPECT_FLOAT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.ropes.front().theta, 10000);
  EXPECT_THAT(c.eos_token_ids, IsEmpty());

  config["architectures"] = {"Qwen3ForCausalLM"};
  c = parse(config);
  EXPECT_EQ(c.attention().num_kv_heads, 32);
  EXPECT_EQ(c.attention().head_dim, 128);
  EXPECT_EQ(c.max_position_embeddings, 32768);

  config["architectures"] = {"Qwen2ForCausalLM"};
  c = parse(config);
  EXPECT_EQ(c.attention().head_dim, 16);
  EXPECT_EQ(c.max_position_embeddings, 32768);

  config["architectures"] = {"MistralForCausalLM"};
  config["sliding_window"] = nullptr;
  c = parse(config);
  EXPECT_EQ(c.attention().num_kv_heads, 8);
  EXPECT_EQ(c.attention().head_dim, 16);
  EXPECT_EQ(c.max_position_embeddings, 131072);
  config["num_key_value_heads"] = nullptr;
  config["head_dim"] = nullptr;
  c = parse(config);
  EXPECT_EQ(c.attention().num_kv_heads, 32);
  EXPECT_EQ(c.attention().head_dim, 16);
}

/// For each layer, whether its MLP is a mixture of experts.
std::vector<bool> has_experts(const ModelSpec& spec) {
  std::vector<bool> result;
  for (const LayerSpec& layer : spec.layers) result.push_back(layer.mlp.num_experts > 0);
  return result;
}

TEST(ModelSpec, ReadsExperts) {
  const std::string variants = kRoot + "/tests/variants/";
  const ModelSpec moe = load_model_spec(variants + "qwen3-moe");
  const MlpSpec& mlp = moe.layers.front().mlp;
  EXPECT_EQ(mlp.num_experts, 8);
  EXPECT_EQ(mlp.experts_per_token, 2);
  EXPECT_EQ(mlp.size, 64);
  EXPECT_TRUE(mlp.normalize);
  EXPECT_EQ(moe.attention().qk_norm, QkNorm::kHead);
  EXPECT_THAT(has_experts(moe), ElementsAre(true, true));
  EXPECT_EQ(moe.num_parameters(), elements_in(variants + "qwen3-moe"));
  const ModelSpec mixed = load_model_spec(variants + "qwen3-moe-mixed");
  EXPECT_FALSE(mixed.layers.back().mlp.normalize);
  EXPECT_THAT(has_experts(mixed), ElementsAre(false, false, false, true, false, true));
  EXPECT_EQ(mixed.num_parameters(), elements_in(variants + "qwen3-moe-mixed"));
  EXPECT_FALSE(has_experts(load_model_spec(variants + "qwen2"))[0]);

  Json config = with(tiny_config(), "architectures", {"Qwen3MoeForCausalLM"});
  const ModelSpec absent = parse(config);
  EXPECT_EQ(absent.layers[0].mlp.num_experts, 128);
  EXPECT_EQ(absent.layers[0].mlp.experts_per_token, 8);
  EXPECT_EQ(absent.layers[0].mlp.size, 768);
  EXPECT_FALSE(absent.layers[0].mlp.normalize);
  EXPECT_THAT(has_experts(absent), ElementsAre(true, true));
  EXPECT_EQ(parse(with(config, "num_local_experts", 60)).layers[0].mlp.num_experts, 60);
  EXPECT_THAT(has_experts(parse(with(config, "mlp_only_layers", nullptr))),
              ElementsAre(true, true));
  const auto error = [&](const char* key, Json value) {
    return user_error([&] { parse(with(config, key, std::move(value))); });
  };
  EXPECT_THAT(error("num_experts", 0), HasSubstr("num_experts is 0"));
  EXPECT_THAT(error("num_experts", 5000), HasSubstr("num_experts is 5000"));
  EXPECT_THAT(error("num_experts_per_tok", 129), HasSubstr("num_experts_per_tok is 129"));
  EXPECT_THAT(error("moe_intermediate_size", 1 << 22), HasSubstr("moe_intermediate_size is"));
  EXPECT_THAT(error("decoder_sparse_step", 0), HasSubstr("decoder_sparse_step is 0"));
  for (const Json& wrong : {Json({2}), Json({-1}), Json({"0"}), Json("x")})
    EXPECT_THAT(error("mlp_only_layers", wrong), HasSubstr("mlp_only_layers is"));
}

// Regression 32.
TEST(ModelSpec, ReadsRopeThetaAsIntegerOrFloat) {
  EXPECT_EQ(parse(with(tiny_llama(), "rope_theta", 1000000)).ropes.front().theta, 1e6);
  EXPECT_EQ(parse(with(tiny_llama(), "rope_theta", 1000000.0)).ropes.front().theta, 1e6);
  EXPECT_EQ(
      parse(with(tiny_llama(), "rope_parameters", {{"rope_theta", 500000}})).ropes.front().theta,
      5e5);
  const Json both = with(with(tiny_llama(), "rope_theta", 20000),  //
                         "rope_scaling", {{"type", "linear"}, {"factor", 2.5}});
  EXPECT_EQ(parse(both).ropes.front().theta, 20000);
  EXPECT_EQ(parse(both).ropes.front().factor, 2.5);
  EXPECT_THAT(error_with("rope_theta", "1e6"), HasSubstr("rope_theta is \"1e6\""));
  EXPECT_THAT(error_with("rope_theta", -1), HasSubstr("rope_theta is -1"));
}

// Regression 35.
TEST(ModelSpec, EndTokensAreThoseOfBothFiles) {
  const Json config = with(tiny_config(), "eos_token_id", 5);
  EXPECT_THAT(parse(config).eos_token_ids, ElementsAre(5));
  EXPECT_THAT(parse(with(tiny_config(), "eos_token_id", {5, 6})).eos_token_ids, ElementsAre(5, 6));
  EXPECT_THAT(parse(config, {{"eos_token_id", {8, 7}}}).eos_token_ids, ElementsAre(8, 7, 5));
  EXPECT_THAT(parse(config, {{"eos_token_id", 9}}).eos_token_ids, ElementsAre(9, 5));
  EXPECT_THAT(parse(config, {{"eos_token_id", {5, 9}}}).eos_token_ids, ElementsAre(5, 9));
  EXPECT_THAT(parse(tiny_config(), {{"eos_token_id", {5}}}).eos_token_ids, ElementsAre(5));
  EXPECT_THAT(parse(config, {{"eos_token_id", nullptr}}).eos_token_ids, ElementsAre(5));
  EXPECT_THAT(parse(config, Json::object()).eos_token_ids, ElementsAre(5));
  EXPECT_THAT(parse(tiny_config()).eos_token_ids, IsEmpty());
  EXPECT_THAT(user_error([&] {
                parse(config, {{"eos_token_id", "</s>"}});
              }),
              HasSubstr("folder/generation_config.json: eos_token_id is \"</s>\""));
  EXPECT_THAT(error_with("eos_token_id", {1, -2}), HasSubstr("eos_token_id is [1,-2]"));
}

TEST(ModelSpec, BytesOfQuantizedWeights) {
  const Json plain = tiny_config();  // layers: 2 of 16 x (16 + 8 + 8 + 16 + 3 * 32) weights
  const ModelSpec whole = parse(plain);
  constexpr size_t kProjections = size_t{2} * 16 * (16 + 8 + 8 + 16 + 3 * 32);
  constexpr size_t kLargest = size_t{16} * 64;
  const auto all = static_cast<size_t>(whole.num_parameters());
  EXPECT_EQ(whole.weight_bytes(DType::kBF16, true), 2 * all);
  const Json blocks = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const ModelSpec fp8 = parse(with(plain, "quantization_config", blocks));
  EXPECT_EQ(fp8.weight_bytes(DType::kBF16, false), 2 * all - kProjections);
  EXPECT_EQ(fp8.weight_bytes(DType::kBF16, true), 2 * all - kProjections + 2 * kLargest);
  EXPECT_EQ(fp8.weight_bytes(DType::kF32, true), 4 * all);
  const Json narrow = {{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}};
  const ModelSpec floats = parse(with(plain, "quantization_config", narrow));
  EXPECT_EQ(floats.weight_bytes(DType::kBF16, false), 2 * all - kProjections);
  EXPECT_EQ(floats.weight_bytes(DType::kBF16, true), 2 * all);
  Json gptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}};  // 0.75 bytes each
  const ModelSpec int4 = parse(with(plain, "quantization_config", gptq));
  EXPECT_EQ(int4.weight_bytes(DType::kBF16, false), 2 * all - kProjections * 5 / 4);
  gptq["desc_act"] = true;
  const ModelSpec ordered = parse(with(plain, "quantization_config", gptq));
  EXPECT_EQ(ordered.weight_bytes(DType::kBF16, true), 2 * all);
}

TEST(ModelSpec, BytesOfQuantizedExperts) {
  const Json blocks = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const ModelSpec plain = load_model_spec(kRoot + "/tests/variants/qwen3-moe");
  ModelSpec fp8 = plain;
  fp8.quantization = parse(with(tiny_config(), "quantization_config", blocks)).quantization;
  const auto values = [&](int64_t rows) { return static_cast<size_t>(rows * plain.hidden_size); };
  const MlpSpec& mlp = plain.layers.front().mlp;
  const size_t experts = values(mlp.num_experts * mlp.size);
  const size_t attention = values(2 * plain.attention().q_size() + 2 * plain.attention().kv_size());
  const size_t saved = plain.layers.size() * (3 * experts + attention);  // a byte for each
  const size_t whole = plain.weight_bytes(DType::kBF16, true);
  EXPECT_EQ(fp8.weight_bytes(DType::kBF16, false), whole - saved);
  // The floats of the largest weight, which is that of the experts here.
  EXPECT_EQ(fp8.weight_bytes(DType::kBF16, true), whole - saved + 2 * 2 * experts);
}

TEST(ModelSpec, RefusesByNameWhatIsNotImplemented) {
  EXPECT_THAT(error_with("hidden_act", "gelu"), HasSubstr("hidden_act is \"gelu\""));
  EXPECT_THAT(error_with("attention_bias", true), HasSubstr("attention_bias is true"));
  EXPECT_THAT(error_with("use_sliding_window", true), HasSubstr("use_sliding_window is true"));
  EXPECT_THAT(error_with("quantization_config", {{"quant_method", "bitsandbytes"}}),
              AllOf(HasSubstr("quantization_config"), HasSubstr("bitsandbytes")));
  EXPECT_THAT(error_with("layer_types", {"full_attention", "sliding_attention"}),
              AllOf(HasSubstr("layer_types"), HasSubstr("sliding_attention")));
  EXPECT_NO_THROW(parse(with(tiny_config(), "layer_types", {"full_attention", "full_attention"})));
  EXPECT_THAT(error_with("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(error_with("torch_dtype", "float64"),
              AllOf(HasSubstr("torch_dtype"), HasSubstr("float64")));
  EXPECT_THAT(user_error([] { parse(with(tiny_llama(), "mlp_bias", true)); }),
              HasSubstr("mlp_bias is true"));
  EXPECT_THAT(error_with("architectures", {"GPT2LMHeadModel"}), HasSubstr("\"GPT2LMHeadModel\""));
  EXPECT_THAT(error_with("architectures", {"Evil\nName"}), HasSubstr("Evil\\nName"));
  EXPECT_THAT(error_with("architectures", Json::array()), HasSubstr("architectures"));
}

TEST(ModelSpec, RefusesMistralsSlidingWindowUnlessItCoversTheContext) {
  const Json mistral = with(tiny_config(), "architectures", {"MistralForCausalLM"});  // context 64
  EXPECT_NO_THROW(parse(mistral));  // transformers' default, 4,096
  EXPECT_NO_THROW(parse(with(mistral, "sliding_window", nullptr)));
  EXPECT_NO_THROW(parse(with(mistral, "sliding_window", 64)));
  EXPECT_THAT(user_error([&] { parse(with(mistral, "sliding_window", 63)); }),
              HasSubstr("sliding_window is 63"));
  EXPECT_THAT(user_error([&] { parse(with(mistral, "max_position_embeddings", 32768)); }),
              HasSubstr("sliding_window is 4096"));
}

TEST(ModelSpec, ChecksSizes) {
  EXPECT_THAT(error_with("hidden_size", 0), HasSubstr("folder/config.json: hidden_size is 0"));
  EXPECT_THAT(error_with("hidden_size", -16), HasSubstr("hidden_size is -16"));
  EXPECT_THAT(error_with("hidden_size", 16.5), HasSubstr("hidden_size is 16.5"));
  EXPECT_THAT(error_with("hidden_size", "16"), HasSubstr("hidden_size is \"16\""));
  EXPECT_THAT(error_with("hidden_size", UINT64_MAX),
              HasSubstr("hidden_size is 18446744073709551615"));
  EXPECT_THAT(error_with("vocab_size", INT64_MAX), HasSubstr("vocab_size"));
  EXPECT_THAT(error_with("num_hidden_layers", 1 << 20), HasSubstr("num_hidden_layers"));
  EXPECT_THAT(error_with("num_key_value_heads", 3), HasSubstr("num_key_value_heads, 3"));
  EXPECT_THAT(error_with("head_dim", 12), HasSubstr("head_dim is 12; it must be a multiple of 8"));
  EXPECT_THAT(error_with("rms_norm_eps", 0), HasSubstr("rms_norm_eps is 0"));
  EXPECT_THAT(error_with("tie_word_embeddings", 1), HasSubstr("tie_word_embeddings is 1"));
  Json wide = with(tiny_config(), "num_attention_heads", 1 << 20);
  EXPECT_THAT(user_error([&] { parse(wide); }), HasSubstr("num_attention_heads * head_dim"));
  EXPECT_THAT(user_error([] { parse(without(tiny_config(), "hidden_size")); }),
              HasSubstr("hidden_size is missing"));
  Json odd = without(tiny_llama(), "head_dim");
  odd["hidden_size"] = 17;
  EXPECT_THAT(user_error([&] { parse(odd); }), HasSubstr("without head_dim"));
  EXPECT_THAT(user_error([] { parse(Json::array()); }), HasSubstr("config.json"));
  EXPECT_THAT(user_error([] { parse(tiny_config(), Json("x")); }),
              HasSubstr("generation_config.json"));
}

// Regression 33: the folder.
TEST(ModelSpec, MissingFolder) {
  for (const std::string path : {"Qwen/Qwen3-0.6B", "/no/such/folder", "./Qwen3-0.6B", "a/b/c", ""})
    EXPECT_THAT(user_error([&] { load_model_spec(path); }),
                AllOf(HasSubstr(path + ": no such folder"), HasSubstr("Hugging Face hub")));
  EXPECT_THAT(user_error([] { load_model_spec(kRoot + "/CMakeLists.txt"); }),
              HasSubstr("is a file"));
}

// Regression 33: the files of the folder.
TEST(ModelSpec, NamesTheFileThatIsMissingOrBroken) {
  const TempFolder folder;
  EXPECT_THAT(user_error([&] { load_model_spec(folder.path()); }), HasSubstr("no config.json"));
  folder.write("config.json", "{\"architectures\": [");
  EXPECT_THAT(user_error([&] { load_model_spec(folder.path()); }),
              StartsWith(folder.path("config.json") + ": not valid JSON"));
  folder.write("config.json", std::string(100000, '['));
  EXPECT_THAT(user_error([&] { load_model_spec(folder.path()); }), HasSubstr("config.json"));
  folder.write("config.json", "{\"hidden_size\": 1e400}");
  EXPECT_THAT(user_error([&] { load_model_spec(folder.path()); }), HasSubstr("config.json"));
  folder.write("config.json", tiny_config().dump());
  EXPECT_EQ(load_model_spec(folder.path()).vocab_size, 24);
  folder.write("generation_config.json", "");
  EXPECT_THAT(user_error([&] { load_model_spec(folder.path()); }),
              HasSubstr("generation_config.json"));
}

}  // namespace
}  // namespace nanovllm
