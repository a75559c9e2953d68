#include "nanovllm/hub/checksum.h"

#include <fmt/format.h>
#include <nettle/sha1.h>
#include <nettle/sha2.h>

#include <algorithm>
#include <array>
#include <span>

#include "nanovllm/hub/model_id.h"

namespace nanovllm::hub {

std::optional<ChecksumKind> checksum_kind(std::string_view digits) {
  constexpr size_t kSha256Digits = 64, kSha1Digits = 40;
  if (is_hex(digits, kSha256Digits)) return ChecksumKind::kSha256;
  if (is_hex(digits, kSha1Digits)) return ChecksumKind::kGitBlob;
  return std::nullopt;
}

struct Checksum::State {
  ChecksumKind kind;
  sha256_ctx sha256;
  sha1_ctx sha1;
};

Checksum::Checksum(ChecksumKind kind, uint64_t size) : state_(std::make_unique<State>()) {
  state_->kind = kind;
  ::nettle_sha256_init(&state_->sha256);
  ::nettle_sha1_init(&state_->sha1);
  if (kind == ChecksumKind::kGitBlob) {
    const std::string head = fmt::format("blob {}", size);
    add({head.c_str(), head.size() + 1});  // with the zero byte
  }
}

Checksum::~Checksum() = default;

void Checksum::add(std::string_view bytes) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  if (state_->kind == ChecksumKind::kSha256)
    ::nettle_sha256_update(&state_->sha256, bytes.size(), data);
  else ::nettle_sha1_update(&state_->sha1, bytes.size(), data);
}

void Checksum::add_file(const InputFile& file, uint64_t bytes,
                        const std::function<void(uint64_t)>& on_progress) {
  constexpr size_t kPiece = size_t{1} << 20;
  std::string piece;
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min<uint64_t>(kPiece, bytes - done));
    file.read(done, piece.data(), piece.size());
    add(piece);
    on_progress(done + piece.size());
  }
}

std::string Checksum::digits() {
  std::array<uint8_t, SHA256_DIGEST_SIZE> digest{};
  size_t len = digest.size();
  if (state_->kind == ChecksumKind::kSha256) {
    ::nettle_sha256_digest(&state_->sha256, len, digest.data());
  } else {
    len = SHA1_DIGEST_SIZE;
    ::nettle_sha1_digest(&state_->sha1, len, digest.data());
  }
  std::string text;
  for (const uint8_t byte : std::span(digest).first(len)) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace nanovllm::hub
