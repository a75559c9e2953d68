#include "nanovllm/model/shard.h"

#include <gtest/gtest.h>

#include "tests/model/model_test_util.h"

namespace nanovllm {
namespace {

ModelSpec model(int64_t heads, int64_t kv_heads, int64_t intermediate, int64_t vocab) {
  Json config = tiny_config();
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = kv_heads;
  config["intermediate_size"] = intermediate;
  config["vocab_size"] = vocab;
  return parse_model_spec(config, {}, "tiny");
}

// Attention reads the local KV head h / (num_heads / num_kv_heads); it must be the KV head that the
// query head has in the whole model.
TEST(Shard, EveryQueryHeadKeepsItsKvHead) {
  for (const int64_t kv_heads : {1, 2, 3, 4, 8})
    for (const int64_t group : {1, 2, 3, 4, 8})
      for (int world = 1; world <= 8 && world <= kv_heads * group; ++world) {
        const ModelSpec whole = model(kv_heads * group, kv_heads, 128, 128);
        int64_t next = 0;
        for (int r = 0; r < world; ++r) {
          const Shard shard = make_shard(whole, {r, world});
          const ModelSpec& own = shard.model;
          EXPECT_EQ(shard.layers[0].heads.first, next);
          next += shard.layers[0].heads.count;
          ASSERT_EQ(own.attention().num_heads, shard.layers[0].heads.count);
          ASSERT_EQ(own.attention().num_heads % own.attention().num_kv_heads, 0);
          for (int64_t h = 0; h < own.attention().num_heads; ++h)
            EXPECT_EQ(shard.layers[0].kv_heads.at(static_cast<size_t>(
                          h / (own.attention().num_heads / own.attention().num_kv_heads))),
                      (shard.layers[0].heads.first + h) / group)
                << kv_heads << " KV heads of " << group << ", rank " << r << " of " << world;
          const bool splits_heads = world % kv_heads == 0 && group * kv_heads % world == 0;
          if (kv_heads % world == 0 || splits_heads) {
            EXPECT_EQ(own.attention().num_kv_heads, std::max<int64_t>(kv_heads / world, 1));
          }
        }
        EXPECT_EQ(next, whole.attention().num_heads);
      }
}

TEST(Shard, OneRankHasTheWholeModel) {
  const ModelSpec whole = model(6, 2, 40, 100);
  const Shard shard = make_shard(whole, {});
  EXPECT_EQ(shard.model.num_parameters(), whole.num_parameters());
  EXPECT_EQ(shard.vocab.count, 100);
  EXPECT_EQ(shard.layers[0].kv_heads, (std::vector<int64_t>{0, 1}));
}

TEST(Shard, SizesThatTheRanksDoNotDivideGiveUnequalParts) {
  const ModelSpec whole = model(6, 2, 40, 100);
  const auto columns = [&](int r) { return make_shard(whole, {r, 3}).layers[0].columns; };
  const auto vocab = [&](int r) { return make_shard(whole, {r, 3}).vocab; };
  EXPECT_EQ(columns(0).count, 16);
  EXPECT_EQ(columns(2).first, 32);
  EXPECT_EQ(columns(2).count, 8);
  EXPECT_EQ(vocab(0).count, 32);
  EXPECT_EQ(vocab(2).first, 64);
  EXPECT_EQ(vocab(2).count, 36);
}

TEST(Shard, ColumnsOfExpertsAreDividedAsThoseOfADenseMlp) {
  const ModelSpec whole = parse_model_spec(tiny_experts(), {}, "tiny");
  for (const int r : {0, 1}) {
    const Shard shard = make_shard(whole, {r, 2});
    EXPECT_EQ(shard.layers[1].columns.first, 8 * r);
    EXPECT_EQ(shard.model.layers[1].mlp.size, r == 0 ? 8 : 16);
    EXPECT_EQ(shard.model.layers[1].mlp.num_experts, 3);
  }
  EXPECT_NE(user_error([&] {
              make_shard(whole, {0, 3});
            }).find("tensor_parallel_size is 3"),
            std::string::npos);
}

TEST(Shard, PartsOfQuantizedColumnsBeginWithAGroup) {
  ModelSpec whole = model(8, 8, 768, 128);
  whole.quantization.emplace().column_unit = 128;
  const auto first = [&](int r, int world) {
    return make_shard(whole, {r, world}).layers[0].columns.first;
  };
  EXPECT_EQ(first(1, 4), 128);
  EXPECT_EQ(first(2, 4), 384);
  EXPECT_EQ(first(3, 4), 512);
  // There are not enough groups for eight ranks.
  EXPECT_EQ(first(1, 8), 96);
}

TEST(Shard, RefusesSizesThatCannotBeDividedByName) {
  const auto refused = [](const ModelSpec& m, int world) {
    return user_error([&] { make_shard(m, {0, world}); });
  };
  EXPECT_EQ(refused(model(2, 1, 128, 128), 4),
            "tensor_parallel_size is 4; with a num_attention_heads of 2 this model allows at most "
            "2");
  EXPECT_NE(refused(model(8, 2, 32, 128), 4).find("intermediate_size of 32"), std::string::npos);
  EXPECT_NE(refused(model(8, 2, 128, 24), 4).find("vocab_size of 24"), std::string::npos);
}

}  // namespace
}  // namespace nanovllm
