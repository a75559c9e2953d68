#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>

#include "nanovllm/server/generation.h"
#include "nanovllm/server/http/connection.h"
#include "nanovllm/server/http/http.h"
#include "nanovllm/server/openai/response.h"
#include "nanovllm/server/server.h"

namespace nanovllm::server {

/// The routes, and the state that their handlers share. Used by the I/O thread only.
class Api {
 public:
  Api(asio::io_context& io, const std::string& model, const ServerOptions& options);

  /// Throws ApiError if there is no such route, the key is missing, or the request comes from the
  /// page of another site. The body is not needed.
  Admitted admit(const HttpRequest& request) const;
  /// The headers that every response to a request has.
  HttpHeaders more_headers(const HttpRequest& request) const {
    return cors_headers(options_.cors, request);
  }
  /// Answers a request that was admitted. Every error becomes a response, unless the client has
  /// disconnected.
  Task<> handle(HttpRequest& request, HttpReply& reply);

  /// From now on requests are answered, until unset_engine(). Throws UserError for a
  /// chat template or a generation_config.json that cannot be read; then nothing has changed.
  void set_engine(AsyncEngine& engine);
  void unset_engine() { serving_.reset(); }
  bool has_engine() const { return serving_ != nullptr; }
  void set_draining() { state_ = State::kDraining; }
  bool is_draining() const { return state_ == State::kDraining; }
  /// Ends requests that still run with an error.
  void set_dead();
  /// Ends AsyncEngine::run().
  void stop_engine();
  /// The number of requests whose answers are being computed.
  size_t num_requests() const { return num_requests_; }
  const std::string& model_name() const { return names_.front(); }

 private:
  enum class State { kLoading, kReady, kDraining, kDead };
  enum class Needs { kNothing, kKey, kKeyAndEngine };
  struct Route {
    std::string_view method;
    std::string_view path;  // a name follows a slash at the end, except after "/", the page
    Task<> (Api::*handler)(HttpRequest&, HttpReply&);
    Needs needs = Needs::kKey;

    bool takes(std::string_view asked) const;
  };
  static const Route kRoutes[];

  Task<> answer(HttpRequest& request, HttpReply& reply);
  /// Makes the text of a response to a request with this body, on a thread of the pool.
  using MakeResponse = std::string (*)(const Serving& serving, const std::string& body,
                                       const std::stop_token& stop);
  Task<> answer_on_pool(HttpRequest& request, HttpReply& reply, MakeResponse make);
  Task<> answer_preflight(const HttpRequest& request, HttpReply& reply);
  bool is_preflight(const HttpRequest& request) const;
  /// The route of a request. Slashes that are doubled or at the end of the path make no difference,
  /// unless they are part of a model's name. Throws ApiError if there is no such route.
  static const Route& route_of(const HttpRequest& request);
  /// The index of the key that the request has. Throws ApiError if it has none of the keys.
  size_t key_of(const HttpRequest& request) const;
  void check_ready() const;
  ServedModel served_model(const std::string& name) const;

  Task<> page(HttpRequest&, HttpReply&);
  Task<> health(HttpRequest&, HttpReply&);
  Task<> version(HttpRequest&, HttpReply&);
  Task<> load(HttpRequest&, HttpReply&);
  Task<> metrics(HttpRequest&, HttpReply&);
  Task<> tokenizer_info(HttpRequest&, HttpReply&);
  Task<> models(HttpRequest&, HttpReply&);
  Task<> model(HttpRequest&, HttpReply&);
  Task<> completions(HttpRequest&, HttpReply&);
  Task<> chat(HttpRequest&, HttpReply&);
  Task<> messages(HttpRequest&, HttpReply&);
  Task<> count_tokens(HttpRequest&, HttpReply&);
  Task<> responses(HttpRequest&, HttpReply&);
  Task<> count_input(HttpRequest&, HttpReply&);
  Task<> stored_response(HttpRequest&, HttpReply&);
  Task<> delete_response(HttpRequest&, HttpReply&);
  Task<> tokenize(HttpRequest&, HttpReply&);
  Task<> detokenize(HttpRequest&, HttpReply&);

  asio::io_context& io_;
  const ServerOptions& options_;
  const std::string model_;
  std::vector<std::string> names_;
  ResponseStore responses_;
  std::string tokenizer_info_;  // the text of GET /tokenizer_info
  std::unique_ptr<LiveServing> serving_;
  WorkPool pool_;  // declared last, because its threads use the other members
  State state_ = State::kLoading;
  size_t num_requests_ = 0;
  const int64_t start_time_ = std::time(nullptr);
};

}  // namespace nanovllm::server
