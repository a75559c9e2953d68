#include "nanovllm/ops/step.h"

#include <gtest/gtest.h>

namespace nanovllm {
namespace {

template <class T>
std::vector<T> values(const Tensor& tensor) {
  const T* const first = tensor.as<const T>();
  return {first, first + tensor.size()};
}

/// Three slots with tables of four blocks of two tokens.
class Derived : public ::testing::Test {
 protected:
  Derived() {
    kv_.block_size = 2;
    kv_.block_tables = {tables_.data(), DType::kI32, 3, 4};
    step_.last_tokens = {last_tokens_.data(), DType::kI32, 3};
  }

  std::vector<int32_t> tables_ = {9, 8, 7, 6, 1, 2, 3, 4, 0, 0, 0, 0}, last_tokens_ = {40, 41, 42};
  KvCache kv_;
  Step step_;
  DerivedArrays arrays_;
};

TEST_F(Derived, RowsBecomePositionsSlotsAndLengths) {
  step_.token_ids = {10, 11, 12, kTokenInFlight, 14};
  step_.rows = {{.slot = 1, .start = 1, .num_tokens = 3},
                {.slot = 0, .start = 6, .num_tokens = 1},
                {.slot = 2, .start = 3, .num_tokens = 1, .store = 0}};
  step_.block_updates = {{.slot = 1, .index = 1, .block = 5}};  // before it is used
  step_.outputs = {{.row = 2, .offset = 0}, {.row = 0, .offset = 1}, {.row = 0, .offset = 1}};
  derive(step_, kv_, arrays_);
  EXPECT_EQ(values<int32_t>(step_.input_ids), (std::vector<int32_t>{10, 11, 12, 40, 14}));
  EXPECT_EQ(values<int32_t>(step_.positions), (std::vector<int32_t>{1, 2, 3, 6, 3}));
  EXPECT_EQ(values<int32_t>(step_.slot_mapping),
            (std::vector<int32_t>{1 * 2 + 1, 5 * 2, 5 * 2 + 1, 6 * 2, -1}));
  EXPECT_EQ(values<int32_t>(step_.cu_seqlens_q), (std::vector<int32_t>{0, 3, 4, 5}));
  EXPECT_EQ(values<int32_t>(step_.context_lens), (std::vector<int32_t>{4, 7, 4}));
  EXPECT_EQ(values<int32_t>(step_.seq_slots), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(values<int32_t>(step_.output_rows), (std::vector<int32_t>{4, 1, 1}));
}

// state.padding-writes-nothing
TEST_F(Derived, PaddingWritesNothingAndReadsNoKeys) {
  step_.token_ids = {10};
  step_.rows = {{.slot = 2, .start = 0, .num_tokens = 1}};
  step_.outputs = {{.row = 0, .offset = 0, .slot = 2}};
  step_.samples.resize(1);
  step_.pad(3);
  EXPECT_TRUE(step_.has_outputs_in_order());
  derive(step_, kv_, arrays_);
  EXPECT_EQ(values<int32_t>(step_.slot_mapping), (std::vector<int32_t>{0, -1, -1}));
  EXPECT_EQ(values<int32_t>(step_.context_lens), (std::vector<int32_t>{1, 0, 0}));
  EXPECT_EQ(values<int32_t>(step_.output_rows), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(step_.outputs[1].slot, -1);
  EXPECT_EQ(step_.samples[2].temperature, 0);
}

TEST_F(Derived, OutputsAreInOrderIfEachIsOfTheTokenOfItsNumber) {
  step_.rows = {{.slot = 0, .num_tokens = 2}, {.slot = 1, .num_tokens = 1}};
  step_.outputs = {{.row = 0, .offset = 0}, {.row = 0, .offset = 1}, {.row = 1, .offset = 0}};
  EXPECT_TRUE(step_.has_outputs_in_order());
  step_.outputs.pop_back();
  EXPECT_TRUE(step_.has_outputs_in_order());
  step_.outputs = {{.row = 0, .offset = 1}, {.row = 1, .offset = 0}};
  EXPECT_FALSE(step_.has_outputs_in_order());
  step_.outputs = {{.row = 0, .offset = 0}, {.row = 0, .offset = 0}};
  EXPECT_FALSE(step_.has_outputs_in_order());
}

}  // namespace
}  // namespace nanovllm
