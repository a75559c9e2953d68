#include "nanovllm/ops/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <latch>
#include <random>
#include <thread>
#include <vector>

#include "nanovllm/base/error.h"
#include "nanovllm/ops/cpu/machine/memory.h"

namespace nanovllm {
namespace {

/// Runs `rank` for each of `world` ranks, each in its own thread.
void on_ranks(int world, const std::function<void(Communicator&)>& rank) {
  const Buffer memory = cpu::allocate(Communicator::bytes());
  std::vector<std::jthread> threads;
  for (int r = 0; r < world; ++r)
    threads.emplace_back([&, r] {
      Communicator ranks(memory.get(), {r, world});
      rank(ranks);
    });
}

TEST(Share, PartsAreAdjacentAndDifferByAtMostOneUnit) {
  for (const int64_t total : {1, 15, 16, 17, 100, 512, 151936})
    for (const int64_t unit : {1, 8, 16})
      for (const int world : {1, 2, 3, 4, 7, 8}) {
        int64_t next = 0, least = total, most = 0;
        for (int r = 0; r < world; ++r) {
          const Range part = share(total, unit, {r, world});
          EXPECT_EQ(part.first, next);
          EXPECT_EQ(part.first % unit * part.count, 0);
          next += part.count;
          least = std::min(least, (part.count + unit - 1) / unit);
          most = std::max(most, (part.count + unit - 1) / unit);
        }
        EXPECT_EQ(next, total);
        EXPECT_LE(most - least, 1) << total << " by " << unit << " over " << world;
      }
}

TEST(Communicator, AllReduceOfNothingChangesNothing) {
  on_ranks(3, [&](Communicator& ranks) {
    float x = 1;
    ranks.all_reduce({&x, DType::kF32, 0});
    ranks.all_reduce({&x, DType::kF32, 0, 64});
    ranks.all_reduce({&x, DType::kF32, 1});
    EXPECT_EQ(x, 3);
  });
}

// These sums depend on their order: a small number that is added between 1e8 and -1e8 is lost.
TEST(Communicator, AllReduceAddsInTheOrderOfTheRanks) {
  for (const int world : {1, 2, 3, 4}) {
    for (const int64_t count : {1, 63, 4096, 5000, 300'000, 1'000'001}) {
      std::vector<std::vector<float>> results(static_cast<size_t>(world));
      const auto value = [](int rank, int64_t i) {
        return rank == 0 ? 1e8f : rank == 1 ? static_cast<float>(i % 7) : -5e7f * (i % 3 == 0);
      };
      on_ranks(world, [&](Communicator& ranks) {
        const int rank = ranks.rank().index;
        std::vector<float>& x = results[static_cast<size_t>(rank)];
        for (int64_t i = 0; i < count; ++i) x.push_back(value(rank, i));
        ranks.all_reduce({x.data(), DType::kF32, count});
      });
      for (int64_t i = 0; i < count; ++i) {
        float sum = value(0, i);
        for (int r = 1; r < world; ++r) sum += value(r, i);
        for (const auto& x : results) ASSERT_EQ(x[static_cast<size_t>(i)], sum) << i;
      }
    }
  }
}

TEST(Communicator, AllReduceRoundsHalfPrecisionOnce) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto pack = dtype == DType::kBF16 ? f32_to_bf16 : f32_to_f16;
    const auto unpack = dtype == DType::kBF16 ? bf16_to_f32 : f16_to_f32;
    constexpr int64_t kRows = 5, kColumns = 4000;
    std::vector<std::vector<uint16_t>> inputs(3), results(3);
    std::mt19937 random(1);
    for (auto& x : inputs)
      for (int64_t i = 0; i < kRows * kColumns; ++i)
        x.push_back(pack(static_cast<float>(random() % 10'000) / 77));
    results = inputs;
    on_ranks(3, [&](Communicator& ranks) {
      auto& x = results[static_cast<size_t>(ranks.rank().index)];
      ranks.all_reduce({x.data(), dtype, kRows, kColumns});
    });
    for (size_t i = 0; i < inputs[0].size(); ++i) {
      const float sum = unpack(inputs[0][i]) + unpack(inputs[1][i]) + unpack(inputs[2][i]);
      for (const auto& x : results) ASSERT_EQ(x[i], pack(sum));
    }
  }
}

TEST(Communicator, GathersBytesNumbersAndColumns) {
  on_ranks(3, [](Communicator& ranks) {
    const int rank = ranks.rank().index;
    for (int round = 0; round < 50; ++round) {
      const int32_t mine[2] = {rank + round, 10 * rank};
      int32_t all[3][2];
      ranks.all_gather(mine, sizeof mine, all);
      for (int r = 0; r < 3; ++r) {
        ASSERT_EQ(all[r][0], r + round);
        ASSERT_EQ(all[r][1], 10 * r);
      }
      ASSERT_EQ(ranks.smallest(100 - rank), 98);
      const Range columns = share(40, kShareUnit, ranks.rank());
      std::vector<float> part(2 * 32);  // rows of 32, of which the first are used
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t c = 0; c < columns.count; ++c)
          part[static_cast<size_t>(i * 32 + c)] = static_cast<float>(100 * i + columns.first + c);
      Tensor view(part.data(), DType::kF32, 2, columns.count);
      view.row_stride = 32;
      const Tensor whole = ranks.join_columns(view, columns.first, 40);
      for (int64_t i = 0; i < 2; ++i)
        for (int64_t c = 0; c < 40; ++c)
          ASSERT_EQ(whole.rows(i, 1).as<float>()[c], static_cast<float>(100 * i + c));
    }
  });
}

TEST(Communicator, AbortEndsCurrentAndLaterWaits) {
  std::latch waiting(2);
  on_ranks(3, [&](Communicator& ranks) {
    if (ranks.rank().index == 2) {
      waiting.wait();
      ranks.abort("rank 2 is out of ink");
      ranks.abort("a second reason");
      EXPECT_TRUE(ranks.aborted());
      return;
    }
    ranks.progress();
    waiting.count_down();
    for (int call = 0; call < 2; ++call) try {
        ranks.barrier();
        ADD_FAILURE() << "no exception";
      } catch (const EngineDead& e) {
        EXPECT_STREQ(e.what(), "rank 2 is out of ink");
      }
  });
  on_ranks(2, [](Communicator& ranks) {
    if (ranks.rank().index == 0) ranks.abort("no such file", /*is_user_error=*/true);
    else EXPECT_THROW(ranks.barrier(), UserError);
  });
}

}  // namespace
}  // namespace nanovllm
