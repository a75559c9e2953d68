#pragma once

#include <boost/beast/http/message.hpp>

#include "nanovllm/server/http/http.h"

namespace nanovllm::server {

using HttpHead = boost::beast::http::request_header<>;

/// The request that a start line and headers describe, without body and address.
HttpRequest read_head(const HttpHead& head);

/// Throws ApiError for a head that Beast accepts and this server refuses, because it is forbidden
/// or because a proxy before this server could read it differently. `request` is read_head(head).
void check_head(const HttpHead& head, const HttpRequest& request);

/// Whether a line of these headers continues the one before it (obs-fold), which only some servers
/// understand.
bool has_folded_line(std::string_view headers);

}  // namespace nanovllm::server
