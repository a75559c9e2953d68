#include "nanovllm/server/http/ids.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cstdint>

#include "nanovllm/base/check.h"

namespace nanovllm::server {

std::string new_id(std::string_view prefix) {
  // Unlike std::random_device, getrandom() needs no file descriptor, of which a server may have
  // none left, and up to 256 bytes are never interrupted by a signal.
  uint32_t bits[3];
  check(getrandom(bits, sizeof bits, 0) == sizeof bits, "getrandom() failed");
  return fmt::format("{}{:08x}{:08x}{:08x}", prefix, bits[0], bits[1], bits[2]);
}

}  // namespace nanovllm::server
