#include "nanovllm/hub/download/http.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <new>

#include "nanovllm/base/check.h"
#include "nanovllm/hub/download/curl_library.h"

namespace nanovllm::hub {

namespace {

constexpr long kMaxRedirects = 10, kConnectSeconds = 15, kBufferBytes = 512 << 10;

template <class Value>
void set(void* handle, CURLoption option, Value value) {
  const CURLcode code = curl_library().easy_setopt(handle, option, value);
  if (code != CURLE_OK)
    throw std::runtime_error(fmt::format("libcurl does not accept its option {}: {}",
                                         static_cast<int>(option),
                                         curl_library().easy_strerror(code)));
}

bool is_unreachable(CURLcode code) {
  return code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY ||
         code == CURLE_COULDNT_CONNECT || code == CURLE_PEER_FAILED_VERIFICATION ||
         code == CURLE_SSL_CACERT_BADFILE;
}

}  // namespace

/// The state of a request that libcurl's callbacks use. They are C functions, so no exception may
/// leave them.
struct HttpClient::Transfer {
  const std::function<void(std::string_view)>& on_data;
  const std::atomic<bool>& stop;
  std::exception_ptr thrown = nullptr;
  std::array<char, CURL_ERROR_SIZE> why = {};

  static size_t write(const char* data, size_t size, size_t count, void* user) {
    auto& transfer = *static_cast<Transfer*>(user);
    try {
      transfer.on_data({data, size * count});
      return size * count;
    } catch (...) {
      transfer.thrown = std::current_exception();
      return 0;
    }
  }
  static int progress(void* user, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(user)->stop ? 1 : 0;
  }
};

HttpClient::HttpClient(const Settings& settings, const std::string& token,
                       const std::atomic<bool>& stop)
    : settings_(settings), token_(token), stop_(stop) {}

HttpReply HttpClient::get(const std::string& path, uint64_t offset,
                          const std::function<void(std::string_view)>& on_data) {
  if (stop_) throw Stopped();
  const CurlLibrary& curl = curl_library();
  Transfer transfer{on_data, stop_};
  // After some failures libcurl refuses to change the options of a handle, so each request has its
  // own handle. Almost every client makes only one request anyway.
  const std::unique_ptr<CURL, decltype(curl.easy_cleanup)> owner(curl.easy_init(),
                                                                 curl.easy_cleanup);
  CURL* const handle = owner.get();
  if (handle == nullptr) throw std::bad_alloc();
  const std::string url = settings_.endpoint + path;
  set(handle, CURLOPT_URL, url.c_str());
  set(handle, CURLOPT_USERAGENT, "nanovllm");
  set(handle, CURLOPT_NOSIGNAL, 1L);
  set(handle, CURLOPT_ERRORBUFFER, transfer.why.data());
  set(handle, CURLOPT_FAILONERROR, 1L);  // the text of an error is not wanted
  set(handle, CURLOPT_BUFFERSIZE, kBufferBytes);
  // HTTP/1.1 gives each transfer a connection of its own. In HTTP/2 those of a process share one.
  set(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(handle, CURLOPT_FOLLOWLOCATION, 1L);
  set(handle, CURLOPT_MAXREDIRS, kMaxRedirects);
  // A redirect must not leave TLS. (An address without TLS is only used if the user asks for it.)
  const bool has_tls = url.starts_with("https:");
  set(handle, CURLOPT_PROTOCOLS_STR, has_tls ? "https" : "http,https");
  set(handle, CURLOPT_REDIR_PROTOCOLS_STR, has_tls ? "https" : "http,https");
  set(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(handle, CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings_.timeout_seconds));
  if (!token_.empty()) {
    set(handle, CURLOPT_HTTPAUTH, static_cast<long>(CURLAUTH_BEARER));
    set(handle, CURLOPT_XOAUTH2_BEARER, token_.c_str());
  }
  if (offset > 0) set(handle, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(offset));
  set(handle, CURLOPT_WRITEFUNCTION, &Transfer::write);
  set(handle, CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  set(handle, CURLOPT_XFERINFOFUNCTION, &Transfer::progress);
  set(handle, CURLOPT_XFERINFODATA, static_cast<void*>(&transfer));
  set(handle, CURLOPT_NOPROGRESS, 0L);

  const CURLcode code = curl.easy_perform(handle);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (code == CURLE_ABORTED_BY_CALLBACK) throw Stopped();
  HttpReply reply;
  long status = 0;
  curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  reply.status = status;
  // libcurl treats 416 as success if it has asked for the rest of a file.
  reply.cannot_resume = code == CURLE_RANGE_ERROR || (offset > 0 && status == 416);
  if (code != CURLE_OK && code != CURLE_HTTP_RETURNED_ERROR && !reply.cannot_resume) {
    const char* const why =
        transfer.why[0] != '\0' ? transfer.why.data() : curl.easy_strerror(code);
    if (code == CURLE_UNSUPPORTED_PROTOCOL)
      throw std::runtime_error(
          fmt::format("{} redirects to another protocol than {} ({}), which is not allowed",
                      settings_.shown_endpoint(), has_tls ? "https" : "http and https", why));
    throw NetworkError(why, is_unreachable(code));
  }
  curl_off_t seconds = 0;
  curl.easy_getinfo(handle, CURLINFO_RETRY_AFTER, &seconds);
  if (seconds > 0) reply.retry_after = seconds;
  curl_header* header = nullptr;
  constexpr int kLastRequest = -1;
  if (curl.easy_header(handle, "X-Error-Code", 0, CURLH_HEADER, kLastRequest, &header) == CURLHE_OK)
    reply.error_code = header->value;
  return reply;
}

std::string url_part(std::string_view text, bool keep_slashes) {
  const CurlLibrary& curl = curl_library();
  std::string url;
  for (;;) {
    const size_t end = keep_slashes ? std::min(text.find('/'), text.size()) : text.size();
    const std::unique_ptr<char, decltype(curl.free)> part(
        end == 0 ? nullptr : curl.easy_escape(nullptr, text.data(), static_cast<int>(end)),
        curl.free);
    if (part != nullptr) url += part.get();
    if (end == text.size()) return url;
    url += '/';
    text.remove_prefix(end + 1);
  }
}

}  // namespace nanovllm::hub
