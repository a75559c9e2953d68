#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "nanovllm/server/http/asio.h"

namespace nanovllm {

/// The parts of a base URL, which must not begin with https.
struct ServerAddress {
  std::string host, port;
  std::string path;     ///< a prefix of all paths, without a slash at its end
  std::string api_key;  ///< empty: no key is sent

  /// Parses a base URL. Throws UserError that names the option.
  static ServerAddress of(const std::string& base_url, const std::string& api_key);
};

/// A connection to a server, kept open for the next request. One request at a time.
class HttpClient {
 public:
  HttpClient(boost::asio::io_context& io, const ServerAddress& address)
      : address_(address), resolver_(io), socket_(io) {}

  /// Called with the body of the response in pieces, as they arrive.
  using OnBody = std::function<void(std::string_view piece)>;

  /// Sends a request and reads the response. Returns its status through `status`. If the server has
  /// closed the connection since the last request, a new one is made. Throws
  /// boost::system::system_error.
  server::Task<> request(std::string_view method, std::string_view path, std::string_view body,
                         const OnBody& on_body, int& status);

 private:
  server::Task<> connect();
  server::Task<> exchange(std::string_view head, std::string_view body, const OnBody& on_body,
                          int& status);

  const ServerAddress& address_;
  boost::asio::ip::tcp::resolver resolver_;
  boost::asio::ip::tcp::socket socket_;
  boost::beast::flat_buffer buffer_;
};

/// Divides the body of a stream of server-sent events into their data.
class EventReader {
 public:
  /// Calls on_data(data) for each event that `piece` completes.
  template <class OnData>
  void add(std::string_view piece, OnData&& on_data) {
    for (size_t end; (end = piece.find('\n')) != std::string_view::npos;
         piece.remove_prefix(end + 1)) {
      std::string_view line = piece.substr(0, end);
      if (!rest_.empty()) line = rest_ += line;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with("data:")) on_data(line.substr(line.starts_with("data: ") ? 6 : 5));
      rest_.clear();
    }
    rest_ += piece;
  }

 private:
  std::string rest_;  // the beginning of a line that has no newline yet
};

}  // namespace nanovllm
