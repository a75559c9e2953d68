#pragma once

#include <string_view>

// The build makes the chat page and its policy from chat.html (cmake/embed_page.cmake), so the
// binary needs no file.
namespace nanovllm::server {

/// The chat page, HTML in UTF-8.
extern const std::string_view kPage;
/// The page's Content-Security-Policy: its own style and script, and requests to its own server.
extern const std::string_view kPagePolicy;

}  // namespace nanovllm::server
