#pragma once

#include <cstdint>

namespace nanovllm::cpu {

/// Philox4x32-10, a generator without state: turns a counter of four words into four random words.
/// A Word is a 64-bit integer, or a vector of them, that holds a 32-bit word in its low half; the
/// high half is anything, before and after. multiply(a, b) is the whole product of two low halves.
/// Internal linkage: kernels of several instruction sets include it. Source: Salmon, Moraes, Dror
/// and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
template <class Word, class Multiply>
static inline void philox4x32_10(Word (&counter)[4], uint32_t key0, uint32_t key1,
                                 Multiply multiply) {
  for (int round = 0; round < 10; ++round) {
    const Word a = multiply(counter[0], 0xd2511f53);
    const Word b = multiply(counter[2], 0xcd9e8d57);
    counter[0] = (b >> 32) ^ counter[1] ^ key0;
    counter[1] = b;
    counter[2] = (a >> 32) ^ counter[3] ^ key1;
    counter[3] = a;
    key0 += 0x9e3779b9;
    key1 += 0xbb67ae85;
  }
}

}  // namespace nanovllm::cpu
