#include <gtest/gtest.h>

#include "nanovllm/server/responses/store.h"

namespace nanovllm::server {
namespace {

std::string id_of(int number) {
  const std::string digits = std::to_string(number);
  return "resp_" + std::string(24 - digits.size(), '0') + digits;
}

std::shared_ptr<const StoredResponse> response(
    int number, std::shared_ptr<const StoredResponse> previous = nullptr, size_t bytes = 0) {
  const Json items = Json::array({{{"id", ResponseStore::item_id("msg", id_of(number), 0)},
                                   {"number", number},
                                   {"padding", std::string(bytes, 'a')}}});
  return std::make_shared<StoredResponse>(StoredResponse{
      .id = id_of(number), .response = "{}", .items = items.dump(), .previous = previous});
}

std::vector<int> numbers_of(const StoredResponse& last) {
  std::vector<int> numbers;
  for (const Json& item : ResponseStore::items_of(last))
    numbers.push_back(item["number"].get<int>());
  return numbers;
}

TEST(ResponseStore, AConversationIsTheItemsOfItsResponses) {
  ResponseStore store({.responses = 10, .bytes = 1 << 20});
  store.add(response(1));
  store.add(response(2, store.find(id_of(1))));
  store.add(response(3, store.find(id_of(2))));
  EXPECT_EQ(numbers_of(*store.find(id_of(3))), (std::vector{1, 2, 3}));
  EXPECT_EQ(numbers_of(*store.find(id_of(2))), (std::vector{1, 2}));
  EXPECT_EQ(store.find_item(ResponseStore::item_id("msg", id_of(2), 0))["number"], 2);
  EXPECT_TRUE(store.find_item("msg_").is_null());
  EXPECT_TRUE(store.find_item("").is_null());
}

TEST(ResponseStore, TheLeastRecentlyUsedOneMakesRoom) {
  ResponseStore store({.responses = 2, .bytes = 1 << 20});
  store.add(response(1));
  store.add(response(2));
  EXPECT_NE(store.find(id_of(1)), nullptr);
  store.add(response(3));
  EXPECT_EQ(store.find(id_of(2)), nullptr);
  EXPECT_NE(store.find(id_of(1)), nullptr);
}

TEST(ResponseStore, WhatAResponseContinuesCounts) {
  ResponseStore store({.responses = 10, .bytes = 3000});
  store.add(response(1, nullptr, 1000));
  const auto first = store.find(id_of(1));
  EXPECT_TRUE(store.remove(id_of(1)));
  EXPECT_FALSE(store.remove(id_of(1)));
  store.add(response(2, first));  // holds the first one, too
  EXPECT_EQ(numbers_of(*store.find(id_of(2))), (std::vector{1, 2}));
  store.add(response(3, nullptr, 1000));
  EXPECT_EQ(store.find(id_of(2)), nullptr);
  EXPECT_NE(store.find(id_of(3)), nullptr);
}

TEST(ResponseStore, KeepsNothingThatIsTooLarge) {
  ResponseStore store({.responses = 10, .bytes = 3000});
  store.add(response(1));
  store.add(response(2, nullptr, 5000));
  EXPECT_EQ(store.find(id_of(2)), nullptr);
  EXPECT_NE(store.find(id_of(1)), nullptr);
  ResponseStore off({});
  EXPECT_FALSE(off.is_on());
  off.add(response(1));
  EXPECT_EQ(off.find(id_of(1)), nullptr);
}

}  // namespace
}  // namespace nanovllm::server
