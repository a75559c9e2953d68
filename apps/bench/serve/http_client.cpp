#include "apps/bench/serve/http_client.h"

#include <fmt/format.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/beast/http.hpp>
#include <limits>

#include "nanovllm/base/check.h"

namespace nanovllm {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using server::Task;

ServerAddress ServerAddress::of(const std::string& base_url, const std::string& api_key) {
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = base_url;
  require(!rest.starts_with("https://"),
          "--base-url is {}; it must begin with http://, since this client knows no TLS", base_url);
  require(rest.starts_with(kScheme), "--base-url is {}; it must be http://HOST:PORT", base_url);
  rest.remove_prefix(kScheme.size());
  ServerAddress address;
  address.api_key = api_key;
  const size_t slash = std::min(rest.find('/'), rest.size());
  address.path = rest.substr(slash);
  while (address.path.ends_with('/')) address.path.pop_back();
  rest = rest.substr(0, slash);
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != std::string_view::npos && rest.find(']', colon) == rest.npos;
  address.host = rest.substr(0, has_port ? colon : rest.size());
  address.port = has_port ? rest.substr(colon + 1) : "80";
  const bool is_ipv6 = address.host.starts_with('[') && address.host.ends_with(']');
  if (is_ipv6) address.host = address.host.substr(1, address.host.size() - 2);
  const bool is_number = address.port.find_first_not_of("0123456789") == std::string::npos;
  require(!address.host.empty() && !address.port.empty() && is_number,
          "--base-url is {}; it must be http://HOST:PORT", base_url);
  return address;
}

Task<> HttpClient::connect() {
  buffer_.clear();
  error_code ignored;
  socket_.close(ignored);
  const auto endpoints =
      co_await resolver_.async_resolve(address_.host, address_.port, asio::use_awaitable);
  co_await asio::async_connect(socket_, endpoints, asio::use_awaitable);
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

Task<> HttpClient::request(std::string_view method, std::string_view path, std::string_view body,
                           const OnBody& on_body, int& status) {
  std::string head = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\n", method, address_.path, path,
                                 address_.host, address_.port);
  if (!address_.api_key.empty())
    head += fmt::format("Authorization: Bearer {}\r\n", address_.api_key);
  if (!body.empty())
    head += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  head += "\r\n";
  const bool was_open = socket_.is_open();
  if (!was_open) co_await connect();
  status = 0;
  bool again = false;
  try {
    co_await exchange(head, body, on_body, status);
  } catch (const boost::system::system_error&) {
    error_code ignored;
    socket_.close(ignored);
    if (!was_open || status != 0) throw;
    again = true;  // the server ends idle connections
  }
  if (!again) co_return;
  co_await connect();
  co_await exchange(head, body, on_body, status);
}

Task<> HttpClient::exchange(std::string_view head, std::string_view body, const OnBody& on_body,
                            int& status) {
  constexpr size_t kRead = 16384;
  const std::array<asio::const_buffer, 2> buffers = {asio::buffer(head), asio::buffer(body)};
  co_await asio::async_write(socket_, buffers, asio::use_awaitable);
  http::response_parser<http::string_body> parser;
  parser.eager(true);  // parses all bytes that have arrived
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  while (!parser.is_done()) {
    error_code error, parsing;
    const size_t n = co_await socket_.async_read_some(
        buffer_.prepare(kRead), asio::redirect_error(asio::use_awaitable, error));
    buffer_.commit(n);
    if (error == asio::error::eof && parser.got_some()) parser.put_eof(parsing);
    else if (error) throw boost::system::system_error(error);
    else buffer_.consume(parser.put(buffer_.data(), parsing));
    if (parsing && parsing != http::error::need_more) throw boost::system::system_error(parsing);
    if (parser.is_header_done()) status = parser.get().result_int();
    std::string& arrived = parser.get().body();
    if (!arrived.empty()) on_body(arrived);
    arrived.clear();
  }
  error_code ignored;
  if (!parser.get().keep_alive()) socket_.close(ignored);
}

}  // namespace nanovllm
