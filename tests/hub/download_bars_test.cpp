#include "nanovllm/hub/download/download_bars.h"

#include "hub_test_util.h"
#include "nanovllm/base/terminal/bar_text.h"

namespace nanovllm::hub {
namespace {

TEST(DownloadBars, SizesHaveThreeDigits) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(999), "999 B");
  EXPECT_EQ(size_text(1000), "1.00 kB");
  EXPECT_EQ(size_text(12'345), "12.3 kB");
  EXPECT_EQ(size_text(999'600), "1.00 MB");
  EXPECT_EQ(size_text(1'503'300'328), "1.50 GB");
  EXPECT_EQ(size_text(2'199'023'255'552), "2.20 TB");
  EXPECT_EQ(short_size(16.4e9), "16.4G");
}

TEST(DownloadBars, ABarLooksAsTqdmDrawsIt) {
  EXPECT_EQ(bar_of_file("model.safetensors", 1'500'000'000, 675'000'000, 12, 56.25e6, 79),
            "model.safetensors:  45%|████▌     | 675M/1.50G [00:12<00:14, 56.2MB/s]");
  EXPECT_EQ(bar_of_file("config.json", 0, 0, 0, 0, 79),
            "config.json: 100%|██████████| 0/0 [00:00<?, 0B/s]");
}

TEST(DownloadBars, ABarIsOneLineInEveryTerminal) {
  const std::string name = "model-00001-of-00005.safetensors";
  EXPECT_EQ(bar_of_file(name, 4'000'000'000, 4'000'000'000, 30, 133e6, 79),
            "…0001-of-00005.safetensors: 100%|██████████| 4.00G/4.00G [00:30<00:00, 133MB/s]");
  for (int columns = 1; columns < 100; ++columns)
    EXPECT_LE(columns_of(bar_of_file(name, 4'000'000'000, 1, 30, 1, columns)), columns);
}

}  // namespace
}  // namespace nanovllm::hub
