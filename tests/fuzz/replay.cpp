// Runs a fuzz target on every file of a folder of seeds. So the test suite, which has neither Clang
// nor libFuzzer, detects old findings again.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> seeds;
  for (int i = 1; i < argc; ++i)
    std::copy(fs::directory_iterator(argv[i]), fs::directory_iterator(), std::back_inserter(seeds));
  std::sort(seeds.begin(), seeds.end());
  for (const fs::path& seed : seeds) {
    std::printf("%s\n", seed.c_str());
    std::fflush(stdout);
    std::ifstream in(seed, std::ios::binary);
    const std::vector<char> bytes(std::istreambuf_iterator<char>(in), {});
    try {
      LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    } catch (const std::exception& e) {
      std::printf("no UserError: %s\n", e.what());
      return 1;
    }
  }
  std::printf("%zu seeds\n", seeds.size());
  return seeds.empty() ? 1 : 0;
}
