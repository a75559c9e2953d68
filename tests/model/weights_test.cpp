#include "nanovllm/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>

#include "nanovllm/model/rope.h"
#include "tests/model/model_test_util.h"

namespace nanovllm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

float element(const Tensor& t, int64_t row, int64_t column) {
  const int64_t i = row * t.row_stride + column;
  if (t.dtype == DType::kF32) return t.as<float>()[i];
  return t.dtype == DType::kF16 ? f16_to_f32(t.as<uint16_t>()[i])
                                : bf16_to_f32(t.as<uint16_t>()[i]);
}

/// A weight as it was passed to pack().
struct FakeWeight : Weight {
  int64_t n = 0, k = 0;
  DType dtype = DType::kF32;
  std::vector<float> values;

  const std::vector<float>& read() const { return values; }
};

/// Packs weights by copying them as late as it may, keeps tensors in host memory, and computes
/// nothing.
class FakeBackend : public Backend {
 public:
  std::string describe() const override { return "fake"; }
  void connect(Communicator&, int64_t) override { unused(); }
  Buffer allocate(size_t bytes) override {
    ++live_buffers;
    return {std::calloc(bytes, 1), [this](void* p) {
              std::free(p);
              --live_buffers;
            }};
  }
  void upload(void* device, const void* host, size_t bytes) override {
    largest_upload = std::max(largest_upload, bytes);
    std::memcpy(device, host, bytes);
  }
  void download(void* host, const void* device, size_t bytes) override {
    std::memcpy(host, device, bytes);
  }
  Memory memory() const override { return {}; }
  void begin_step(const KvCache&) override { unused(); }
  void load_weights(const std::function<void()>& load) override {
    is_loading_ = true;
    load();
    is_loading_ = false;
    for (const auto& [weight, part] : std::exchange(waiting_, {})) {
      std::vector<char> bytes(part.row_bytes());
      const Tensor row(bytes.data(), part.dtype(), 1, weight->k);
      for (int64_t i = 0; i < part.num_rows(); ++i) {
        part.read(i, 1, bytes.data());
        for (int64_t j = 0; j < weight->k; ++j) weight->values.push_back(element(row, 0, j));
      }
      if (on_part_read) on_part_read();
    }
  }
  WeightPtr pack(std::span<const WeightRows> parts, DType dtype) override {
    EXPECT_TRUE(is_loading_);
    auto weight = std::make_shared<FakeWeight>();
    weight->k = parts.front().num_columns();
    weight->dtype = dtype;
    for (const WeightRows& part : parts) {
      EXPECT_EQ(part.num_columns(), weight->k);
      weight->n += part.num_rows();
      waiting_.emplace_back(weight, part);
    }
    return weight;
  }
  void embed(Tensor, const Weight&, Tensor) override { unused(); }
  void rms_norm(Tensor, Tensor, const Norm&) override { unused(); }
  void sum_squares(Tensor, Tensor, const WholeNorms&) override { unused(); }
  void scale_by_squares(Tensor, Tensor, const WholeNorms&) override { unused(); }
  void add(Tensor, Tensor) override { unused(); }
  void gather_rows(Tensor, Tensor, Tensor) override { unused(); }
  void matmul(Tensor, Tensor, const Weight&, Tensor) override { unused(); }
  void rope_and_store(const RopeStoreArgs&, const KvCache&, const Step&) override { unused(); }
  void attention(const AttentionArgs&, const KvCache&, const Step&) override { unused(); }
  void silu_mul(Tensor, Tensor) override { unused(); }
  WeightPtr pack_experts(std::span<const WeightRows> parts, int64_t num_experts,
                         DType dtype) override {
    num_packed_experts += num_experts;
    return pack(parts, dtype);
  }
  void copy_blocks(const KvCache&, std::span<const BlockCopy>) override { unused(); }
  void sample(Tensor, const Step&) override { unused(); }
  void fetch_samples(std::span<int32_t>, std::span<RowStatus>, std::vector<Logprob>&) override {
    unused();
  }
  void token_logprobs(Tensor, std::span<const int32_t>, int64_t, std::vector<Logprob>&) override {
    unused();
  }

  int live_buffers = 0;
  int64_t num_packed_experts = 0;
  std::function<void()> on_part_read;
  size_t largest_upload = 0;

 private:
  static void unused() { FAIL() << "loading computes nothing"; }

  bool is_loading_ = false;
  std::vector<std::pair<std::shared_ptr<FakeWeight>, WeightRows>> waiting_;
};

const FakeWeight& fake(const WeightPtr& weight) { return dynamic_cast<const FakeWeight&>(*weight); }

std::vector<float> values(const Tensor& t) {
  EXPECT_EQ(t.dtype, DType::kF32);
  return {t.as<float>(), t.as<float>() + t.size()};
}

/// A folder with a checkpoint of `tensors`, and the tensors by name.
struct TestFolder {
  explicit TestFolder(std::vector<TestTensor> list) : tensors(std::move(list)) {
    folder.write("model.safetensors", safetensors_file(tensors));
  }
  std::vector<float> stacked(const std::vector<std::string>& names) const {
    std::vector<float> out;
    for (const std::string& name : names)
      for (const TestTensor& t : tensors)
        if (t.name == name) out.insert(out.end(), t.values.begin(), t.values.end());
    return out;
  }
  TempFolder folder;
  std::vector<TestTensor> tensors;
};

std::unique_ptr<Model> load(const TestFolder& f, const Json& config, FakeBackend& backend,
                            DType dtype = DType::kBF16) {
  auto model = std::make_unique<Model>();
  load_model(*model, f.folder.path(), parse(config), dtype, /*dummy=*/false, backend,
             /*max_model_len=*/16);
  return model;
}

std::string load_error(std::vector<TestTensor> tensors, const Json& config) {
  const TestFolder folder(std::move(tensors));
  FakeBackend backend;
  return user_error([&] { load(folder, config, backend); });
}

void expect_loaded(const TestFolder& f, const Json& json, const Model& model) {
  const ModelSpec& c = model.spec;
  EXPECT_EQ(fake(model.embed).read(), f.stacked({"model.embed_tokens.weight"}));
  EXPECT_EQ(fake(model.embed).n, c.vocab_size);
  ASSERT_EQ(model.layers.size(), 2u);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const Layer& layer = model.layers[i];
    const std::string name = "model.layers." + std::to_string(i) + ".";
    const std::string attn = name + "self_attn.", mlp = name + "mlp.";
    EXPECT_EQ(fake(layer.qkv).values,
              f.stacked({attn + "q_proj.weight", attn + "k_proj.weight", attn + "v_proj.weight"}));
    EXPECT_EQ(fake(layer.qkv).n, c.attention().qkv_size());
    EXPECT_EQ(fake(layer.qkv).dtype, model.dtype);
    EXPECT_EQ(fake(layer.o).values, f.stacked({attn + "o_proj.weight"}));
    EXPECT_EQ(fake(layer.o).k, c.attention().q_size());
    EXPECT_EQ(fake(layer.gate_up).values,
              f.stacked({mlp + "gate_proj.weight", mlp + "up_proj.weight"}));
    EXPECT_EQ(fake(layer.down).values, f.stacked({mlp + "down_proj.weight"}));
    EXPECT_EQ(values(layer.before_attention.weight), f.stacked({name + "input_layernorm.weight"}));
    EXPECT_EQ(values(layer.before_mlp.weight),
              f.stacked({name + "post_attention_layernorm.weight"}));
    EXPECT_EQ(values(layer.q_norm), f.stacked({attn + "q_norm.weight"}));
    EXPECT_EQ(values(layer.k_norm), f.stacked({attn + "k_norm.weight"}));
    EXPECT_EQ(values(layer.qkv_bias),
              f.stacked({attn + "q_proj.bias", attn + "k_proj.bias", attn + "v_proj.bias"}));
    EXPECT_EQ(static_cast<bool>(layer.q_norm), c.attention().qk_norm == QkNorm::kHead);
    EXPECT_EQ(static_cast<bool>(layer.qkv_bias), c.attention().qkv_bias);
  }
  EXPECT_EQ(values(model.norm.weight), f.stacked({"model.norm.weight"}));
  if (json.at("tie_word_embeddings").get<bool>()) {
    EXPECT_EQ(model.lm_head, model.embed);
  } else {
    EXPECT_EQ(fake(model.lm_head).values, f.stacked({"lm_head.weight"}));
  }
  EXPECT_EQ(model.ropes[0].cos.shape[0], 16);
  EXPECT_EQ(model.ropes[0].sin.shape[1], c.attention().head_dim / 2);
}

// Regression 37: float16, float32 and bfloat16 shards, in any model dtype.
TEST(LoadModel, LetsTheCallerGoOnWhileWeightsAreRead) {
  const Json json = tiny_config();
  const TestFolder folder(test_checkpoint(json, "BF16"));
  FakeBackend backend;
  Model model;
  const auto load = [&](const std::function<void()>& meanwhile) {
    load_model(model = {}, folder.folder.path(), parse(json), DType::kBF16, /*dummy=*/false,
               backend, /*max_model_len=*/16, {}, meanwhile);
  };
  bool was_called = false;
  load([&] {
    was_called = true;
    EXPECT_EQ(model.layers.size(), static_cast<size_t>(model.spec.num_layers()));
    EXPECT_TRUE(model.ropes[0].cos);
    EXPECT_TRUE(fake(model.embed).values.empty());
  });
  EXPECT_TRUE(was_called);
  EXPECT_FALSE(fake(model.embed).values.empty());
  EXPECT_EQ(user_error([&] { load([] { fail("no room for a cache"); }); }), "no room for a cache");
}

TEST(LoadModel, FillsEverySlotFromEveryDType) {
  for (const char* stored : {"F16", "F32", "BF16"})
    for (const char* architecture :
         {"Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM", "MistralForCausalLM"})
      for (const bool tied : {true, false}) {
        SCOPED_TRACE(std::string(stored) + " " + architecture + (tied ? " tied" : " untied"));
        Json config = tiny_config();
        config["architectures"] = {architecture};
        config["tie_word_embeddings"] = tied;
        FakeBackend backend;
        const TestFolder folder(test_checkpoint(config, stored));
        const auto model = load(folder, config, backend, DType::kF16);
        EXPECT_EQ(model->dtype, DType::kF16);
        EXPECT_EQ(model->spec.weight_bytes(model->dtype, /*on_gpu=*/true),
                  static_cast<size_t>(model->spec.num_parameters()) * 2);
        expect_loaded(folder, config, *model);
      }
}

// Layer 0 is dense. The weights of layer 1's experts follow each other; a rank takes some columns
// of each expert, and the whole router.
TEST(LoadModel, StacksTheWeightsOfExperts) {
  const Json config = tiny_experts();
  const TestFolder folder(test_checkpoint(config, "BF16"));
  FakeBackend backend;
  const auto model = load(folder, config, backend);
  EXPECT_EQ(backend.num_packed_experts, 2 * 3);
  EXPECT_EQ(model->layers[0].router, nullptr);
  EXPECT_EQ(fake(model->layers[0].down).k, 32);
  const Layer& layer = model->layers[1];
  const std::string mlp = "model.layers.1.mlp.";
  EXPECT_EQ(fake(layer.router).values, folder.stacked({mlp + "gate.weight"}));
  std::vector<std::string> gate_up, down;
  for (const char* expert : {"0.", "1.", "2."}) {
    gate_up.push_back(mlp + "experts." + expert + "gate_proj.weight");
    gate_up.push_back(mlp + "experts." + expert + "up_proj.weight");
    down.push_back(mlp + "experts." + expert + "down_proj.weight");
  }
  EXPECT_EQ(fake(layer.gate_up).values, folder.stacked(gate_up));
  EXPECT_EQ(fake(layer.down).values, folder.stacked(down));
  EXPECT_EQ(model->spec.weight_bytes(model->dtype, /*on_gpu=*/true),
            static_cast<size_t>(model->spec.num_parameters()) * 2);

  Model half;
  load_model(half, folder.folder.path(), parse(config), DType::kBF16, /*dummy=*/false, backend,
             /*max_model_len=*/16, {1, 2});
  EXPECT_EQ(fake(half.layers[1].router).n, 3);
  EXPECT_EQ(fake(half.layers[1].gate_up).n, 3 * 2 * 16);  // 8 of the 24 columns are rank 0's
  EXPECT_EQ(fake(half.layers[1].down).k, 16);
  EXPECT_EQ(half.spec.layers[1].mlp.size, 16);

  std::vector<TestTensor> tensors = test_checkpoint(config, "BF16");
  std::erase_if(tensors, [&](const auto& t) { return t.name == down[2]; });
  EXPECT_THAT(load_error(tensors, config), AllOf(HasSubstr(down[2]), HasSubstr("missing")));
  tensors = test_checkpoint(config, "BF16");
  tensors.push_back({mlp + "experts.3.up_proj.weight", "BF16", {1}, {0}});
  EXPECT_THAT(load_error(tensors, config), HasSubstr("experts.3.up_proj.weight"));
}

TEST(LoadModel, TakesFilesOfMixedDTypes) {
  std::vector<TestTensor> tensors = test_checkpoint(tiny_config(), "BF16");
  const char* dtypes[] = {"F32", "BF16", "F16"};
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].dtype = dtypes[i % 3];
  FakeBackend backend;
  const TestFolder folder(std::move(tensors));
  expect_loaded(folder, tiny_config(), *load(folder, tiny_config(), backend));
}

TEST(LoadModel, ReturnsAllMemory) {
  FakeBackend backend;
  const TestFolder folder(test_checkpoint(tiny_config(), "BF16"));
  load(folder, tiny_config(), backend);
  EXPECT_EQ(backend.live_buffers, 0);
}

// Regression 33: a missing tensor.
TEST(LoadModel, NamesEveryTensorThatIsMissing) {
  Json config = tiny_config();
  config["tie_word_embeddings"] = false;
  const std::vector<TestTensor> all = test_checkpoint(config, "BF16");
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<TestTensor> rest = all;
    rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_THAT(load_error(rest, config), HasSubstr("tensor \"" + all[i].name + "\" is missing"));
  }
}

// Regression 33: a wrong shape or dtype.
TEST(LoadModel, NamesEveryTensorOfTheWrongShape) {
  Json config = tiny_config();
  config["tie_word_embeddings"] = false;
  std::vector<TestTensor> tensors = test_checkpoint(config, "BF16");
  for (TestTensor& t : tensors) {
    const TestTensor right = t;
    t.shape.front() += 1;
    t.values.resize(t.values.size() + (t.shape.size() == 2 ? static_cast<size_t>(t.shape[1]) : 1));
    EXPECT_THAT(load_error(tensors, config),
                AllOf(HasSubstr("model.safetensors: tensor \"" + t.name + "\" has shape"),
                      HasSubstr("config.json requires")));
    t = right;
    t.shape.push_back(1);
    EXPECT_THAT(load_error(tensors, config), HasSubstr(t.name));
    t = right;
  }
}

TEST(LoadModel, NamesATensorThatNobodyNeeds) {
  const Json config = tiny_config();
  const std::vector<TestTensor> all = test_checkpoint(config, "BF16");
  for (const char* name : {"model.layers.2.input_layernorm.weight", "model.extra",
                           "model.layers.0.self_attn.q_proj.bias", "model.layers.00.mlp"}) {
    std::vector<TestTensor> more = all;
    more.push_back({name, "F32", {1}, {1}});
    EXPECT_THAT(load_error(more, config), HasSubstr(std::string("tensor \"") + name + "\""));
  }
}

TEST(LoadModel, IgnoresRotaryFrequenciesAndATiedHeadAndScalesOfActivations) {
  Json config = tiny_config();
  std::vector<TestTensor> tensors = test_checkpoint(config, "BF16");
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", "F32", {4}, {0, 0, 0, 0}});
  tensors.push_back({"lm_head.weight", "BF16", {24, 16}, std::vector<float>(24 * 16)});
  tensors.push_back({"model.layers.0.self_attn.k_scale", "F32", {1}, {0.5}});
  tensors.push_back({"model.layers.0.self_attn.v_proj.v_scale", "BF16", {}, {0.5}});
  tensors.push_back({"model.layers.0.mlp.up_proj.input_scale", "F32", {1}, {0.5}});
  FakeBackend backend;
  const TestFolder folder(tensors);
  expect_loaded(folder, config, *load(folder, config, backend));
}

TEST(LoadModel, MakesDummyWeightsWithoutAnyFile) {
  Json json = tiny_config();
  json["hidden_size"] = 64;
  json["vocab_size"] = 2048;
  json["tie_word_embeddings"] = false;
  const ModelSpec config = parse(json);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    FakeBackend backend;
    Model model, again;
    for (Model* into : {&model, &again})
      load_model(*into, "/no/such/folder", config, dtype, /*dummy=*/true, backend, 16);
    const std::vector<float> embed = fake(model.embed).read();
    ASSERT_EQ(embed.size(), 2048u * 64);
    EXPECT_EQ(embed, fake(again.embed).read());
    double sum = 0, squares = 0;
    for (const float x : embed) {
      sum += x;
      squares += static_cast<double>(x) * x;
    }
    const auto count = static_cast<double>(embed.size());
    EXPECT_NEAR(sum / count, 0, 5 * 0.02 / std::sqrt(count));
    EXPECT_NEAR(std::sqrt(squares / count), 0.02, 0.0005);

    std::set<std::vector<float>> rows;
    for (auto row = embed.begin(); row != embed.end(); row += 64) rows.insert({row, row + 64});
    EXPECT_EQ(rows.size(), 2048u);
    EXPECT_NE(fake(model.lm_head).values, embed);
    EXPECT_NE(fake(model.layers[0].qkv).values, fake(model.layers[1].qkv).values);
    for (const Tensor& norm : {model.norm.weight, model.layers[0].before_attention.weight,
                               model.layers[1].q_norm, model.layers[1].before_mlp.weight})
      EXPECT_THAT(values(norm), ::testing::Each(1.0f));
  }
}

TEST(LoadModel, ReadsNoFileAfterwards) {
  const Json config = tiny_config();
  FakeBackend backend;
  const TestFolder folder(test_checkpoint(config, "BF16"));
  const auto model = load(folder, config, backend);
  folder.folder.write("model.safetensors", "");
  expect_loaded(folder, config, *model);
}

TEST(LoadModel, AFileThatChangesMeanwhileIsAnError) {
  const Json config = tiny_config();
  const TestFolder folder(test_checkpoint(config, "BF16"));
  const std::string whole = safetensors_file(folder.tensors);
  FakeBackend backend;
  const auto error_where = [&](const std::string& becomes) {
    folder.folder.write("model.safetensors", whole);
    int num_parts = 0;
    backend.on_part_read = [&] {
      if (++num_parts == 2) folder.folder.write("model.safetensors", becomes);
    };
    return user_error([&] { load(folder, config, backend); });
  };
  EXPECT_THAT(error_where(whole.substr(0, whole.size() / 4)),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("shorter")));
  std::string other = whole;
  other.back() ^= 1;
  EXPECT_THAT(error_where(other), AllOf(HasSubstr("model.safetensors"), HasSubstr("changed")));
}

// Tables of a gigabyte must not be built in host memory before they are copied.
TEST(LoadModel, FillsLongRopeTablesInParts) {
  FakeBackend backend;
  const ModelSpec config = parse(tiny_config());
  const int64_t num_positions = 50'000, width = config.attention().head_dim / 2;
  Model model;
  load_model(model, "", config, DType::kF32, /*dummy=*/true, backend, num_positions);
  const RopeTables tables =
      rope_tables(config.ropes.front(), config.attention().head_dim, num_positions);
  const auto count = static_cast<size_t>(num_positions * width);
  ASSERT_EQ(tables.cos.size(), count);
  EXPECT_LT(backend.largest_upload, count * sizeof(float) / 4);
  EXPECT_TRUE(std::equal(tables.cos.begin(), tables.cos.end(), model.ropes[0].cos.as<float>()));
  EXPECT_TRUE(std::equal(tables.sin.begin(), tables.sin.end(), model.ropes[0].sin.as<float>()));
}

}  // namespace
}  // namespace nanovllm
