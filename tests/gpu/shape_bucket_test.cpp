#include "nanovllm/ops/cuda/tuning/shape_bucket.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace nanovllm::cuda {
namespace {

TEST(SharedChoice, GraphsUpTo256HaveTheirOwn) {
  for (const int64_t few : {1, 2, 4, 8}) EXPECT_EQ(largest_in_bucket(few), few);
  for (int64_t size = 16; size <= 256; size += 16) {
    EXPECT_EQ(largest_in_bucket(size), size);
    EXPECT_EQ(largest_in_bucket(size - 7), size);
  }
}

TEST(SharedChoice, TokensThatShareAChoiceNeedEquallyManyTiles) {
  for (int64_t tokens = 1; tokens <= 20000; ++tokens) {
    const int64_t largest = largest_in_bucket(tokens);
    ASSERT_GE(largest, tokens);
    ASSERT_EQ(largest_in_bucket(largest), largest);
    if (tokens > 1024) continue;
    // A shared choice does not cross the bounds at which the candidates change, and needs the same
    // number of tiles of each size that is a candidate there.
    for (const int64_t bound : {64, 128, 192, 256, 384})
      ASSERT_EQ(tokens <= bound, largest <= bound) << tokens;
    for (const int64_t tile : {64, 128, 192, 256}) {
      if (tile == 64 ? tokens > 128 : tile == 192 && tokens > 384) continue;
      ASSERT_EQ((tokens + tile - 1) / tile, (largest + tile - 1) / tile) << tokens;
    }
  }
}

TEST(SharedChoice, BucketSizesAreThoseOfAllTokens) {
  for (const int64_t most : {1, 5, 8, 100, 512, 3000, 16384}) {
    const std::set sizes = bucket_sizes(most);
    EXPECT_EQ(*sizes.begin(), most);
    for (int64_t tokens = 1; tokens <= most; ++tokens)
      ASSERT_TRUE(sizes.contains(std::min(largest_in_bucket(tokens), most))) << tokens;
  }
}

}  // namespace
}  // namespace nanovllm::cuda
