// Measures the tokenizer on one thread: tokenizer_bench MODEL TEXTFILE...
//
// Prints the time to load, the MB/s of encoding, and the nanoseconds per token of incremental
// decoding: the best of several runs. tokenizer_peers.py compares with tiktoken and the Python
// package `tokenizers` on the same texts.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "nanovllm/base/system/files.h"
#include "nanovllm/text/tokenizer/detokenizer.h"
#include "nanovllm/text/tokenizer/tokenizer.h"

namespace {

constexpr int kRuns = 7;

// The shortest time, in seconds, that `work` took.
template <class F>
double best_of(F&& work) {
  double best = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  using nanovllm::Tokenizer;
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s MODEL TEXTFILE...\n", argv[0]);
    return 2;
  }
  try {
    std::unique_ptr<const Tokenizer> tokenizer;
    const double load = best_of([&] { tokenizer = Tokenizer::load(argv[1]); });
    std::printf("%-24s %8.1f ms\n", "load", load * 1e3);
    for (int i = 2; i < argc; ++i) {
      const std::string text = nanovllm::read_file(argv[i], size_t{1} << 30);
      std::vector<int32_t> ids;
      const double encode = best_of([&] { ids = tokenizer->encode(text); });
      const double decode = best_of([&] {
        nanovllm::Detokenizer detokenizer(*tokenizer, /*skip_special_tokens=*/true);
        for (const int32_t id : ids) detokenizer.push(id);
        detokenizer.finish();
      });
      std::printf("%-24s %8.1f MB/s encode %8.1f ns/token decode %10zu bytes %9zu tokens\n",
                  argv[i], static_cast<double>(text.size()) / encode / 1e6,
                  decode / static_cast<double>(std::max<size_t>(ids.size(), 1)) * 1e9, text.size(),
                  ids.size());
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
