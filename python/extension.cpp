// nanovllm._core: llm.h for Python, shared by threads. python/nanovllm/_core.pyi has its
// signatures.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "convert.h"

namespace nb = nanobind;

namespace nanovllm::python {

namespace {

using Clock = std::chrono::steady_clock;

/// A lock that threads get in the order in which they asked, so that one that steps all the time
/// keeps no other out.
class Turns {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = num_asked_++;
    changed_.wait(lock, [&] { return num_had_ == mine; });
  }
  void unlock() {
    const std::lock_guard lock(mutex_);
    ++num_had_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t num_asked_ = 0, num_had_ = 0;
};

std::atomic<bool> is_leaving = false;
std::atomic<int> num_away = 0, num_returning = 0;  // threads without the GIL; that want it back
thread_local bool is_leaver = false;

/// Lets go of the GIL meanwhile. A thread that wants it back while the interpreter ends would be
/// ended by Python, C++ frames or not, and abort the process: it sleeps instead.
class Released {
 public:
  Released() : state_(PyEval_SaveThread()) { ++num_away; }
  ~Released() {
    ++num_returning;
    if (is_leaving && !is_leaver) {
      --num_returning;
      for (;;) pause();
    }
    PyEval_RestoreThread(state_);
    --num_returning;
    --num_away;
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  PyThreadState* state_;
};

/// From now on only this thread comes back to Python; those that are about to may.
void leave() {
  is_leaver = true;
  is_leaving = true;
  PyThreadState* const state = PyEval_SaveThread();
  while (num_returning > 0) std::this_thread::yield();
  PyEval_RestoreThread(state);
  if (num_away > 0) nb::set_leak_warnings(false);  // what sleeping threads hold
}

/// The requests of one caller and what came for them. Whoever steps the engine, each update goes to
/// the inbox of its request.
struct Inbox : std::enable_shared_from_this<Inbox> {
  bool wants_pieces = false;  // every update, or only what finished
  std::unordered_set<uint64_t> running;
  std::vector<RequestUpdate> arrived;
};

/// An LLM that several threads may use: each call takes a turn, without the GIL.
class Engine {
 public:
  Engine(const std::string& model, const EngineConfig& config) : llm_(model, config) {}

  uint64_t add(const std::shared_ptr<Inbox>& inbox, const Prompt& prompt,
               const SamplingParams& params) {
    const auto turn = take_turn();
    const uint64_t id =
        std::visit([&](const auto& p) { return llm_.add_request(p, params); }, prompt);
    inboxes_[id] = inbox;
    inbox->running.insert(id);
    return id;
  }

  /// Steps the engine until the inbox's requests ended or `seconds` are over, at least once, or for
  /// pieces until there is one; what arrived. Returns to Python that often for its signals.
  std::vector<RequestUpdate> wait(Inbox& inbox, double seconds) {
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    const auto enough = [&] {
      return inbox.running.empty() || (inbox.wants_pieces && !inbox.arrived.empty());
    };
    for (;;) {
      const auto turn = take_turn();
      std::ignore = llm_.is_finished();  // throws after exit() and after a step that failed
      if (!enough()) step();
      if (enough() || Clock::now() >= end) return std::exchange(inbox.arrived, {});
    }
  }

  /// Ends the inbox's requests; nothing more arrives.
  void abandon(Inbox& inbox) {
    try {
      const auto turn = take_turn();
      inbox.arrived.clear();
      for (const uint64_t id : std::exchange(inbox.running, {})) {
        inboxes_.erase(id);
        llm_.abort(id);
      }
    } catch (const EngineDead&) {  // then nothing of it runs
    }
  }

  /// Ends a request; what it has arrives as finished.
  bool abort(uint64_t id) {
    const auto turn = take_turn();
    return llm_.abort(id);
  }

  void exit() {
    if (getpid() != process_) return;  // its parent's
    const std::lock_guard turn(turns_);
    ended_ = true;
    llm_.exit();
    inboxes_.clear();
  }

  /// Throws EngineDead after exit() and in a forked process. Needs no turn.
  void require_alive() const {
    if (getpid() != process_)
      throw EngineDead(
          "this LLM belongs to the process that this one was forked from; make one "
          "after the fork");
    if (ended_) throw EngineDead("the engine was ended by exit()");
  }

  LLMTokenizer tokenizer() const { return llm_.tokenizer(); }
  int64_t max_model_len() {
    const auto turn = take_turn();
    return llm_.max_model_len();
  }
  int64_t vocab_size() {
    const auto turn = take_turn();
    return llm_.vocab_size();
  }
  std::pair<int64_t, int64_t> num_tokens() const { return {prefill_tokens_, decode_tokens_}; }

 private:
  std::unique_lock<Turns> take_turn() {
    require_alive();  // a forked process has no thread that would give a turn back
    return std::unique_lock(turns_);
  }

  void step() {
    for (RequestUpdate& update : llm_.step()) {
      const auto at = inboxes_.find(update.request_id);
      if (at == inboxes_.end()) continue;  // abandoned
      Inbox& inbox = *at->second;
      const bool finished = update.finished.has_value();
      const uint64_t id = update.request_id;
      if (finished || inbox.wants_pieces) inbox.arrived.push_back(std::move(update));
      if (!finished) continue;
      inbox.running.erase(id);
      inboxes_.erase(at);
    }
    const EngineStats stats = llm_.stats();
    prefill_tokens_ = stats.prefill_tokens;
    decode_tokens_ = stats.decode_tokens;
  }

  const pid_t process_ = getpid();
  std::atomic<bool> ended_ = false;
  LLM llm_;
  Turns turns_;
  std::unordered_map<uint64_t, std::shared_ptr<Inbox>> inboxes_;
  std::atomic<int64_t> prefill_tokens_ = 0, decode_tokens_ = 0;
};

}  // namespace

NB_MODULE(_core, m) {
  pthread_atfork(nullptr, nullptr, [] {  // no other thread is in a forked process
    num_away = num_returning = 0;
    nb::set_leak_warnings(false);  // what they hold
  });

  nb::exception<UserError>(m, "UserError", PyExc_ValueError);
  nb::exception<EngineDead>(m, "EngineDead", PyExc_RuntimeError);

  nb::class_<LLMTokenizer>(m, "Tokenizer")
      .def(
          "encode",
          [](const LLMTokenizer& tokenizer, nb::handle text, bool add_special_tokens) {
            const std::string utf8 = to_text(text, "text");
            const Released released;
            return tokenizer.encode(utf8, add_special_tokens);
          },
          nb::arg().none(), nb::arg())
      .def(
          "decode",
          [](const LLMTokenizer& tokenizer, nb::handle token_ids, bool skip_special_tokens) {
            return tokenizer.decode(to_token_ids(token_ids, "token_ids"), skip_special_tokens);
          },
          nb::arg().none(), nb::arg())
      .def("render_chat_template", [](const LLMTokenizer& tokenizer, nb::handle variables_json) {
        const std::string utf8 = to_text(variables_json, "variables");
        const Released released;
        return tokenizer.render_chat_template(utf8);
      });

  nb::class_<Inbox>(m, "Inbox");
  m.def("inbox", [](bool wants_pieces) {
    auto inbox = std::make_shared<Inbox>();
    inbox->wants_pieces = wants_pieces;
    return inbox;
  });

  nb::class_<Engine>(m, "Engine")
      .def("__init__",
           [](Engine* engine, nb::handle model, const nb::dict& options) {
             const std::string folder = to_text(model, "model");
             const EngineConfig config = to_engine_config(options);
             const Released released;
             new (engine) Engine(folder, config);
           })
      .def(
          "add",
          [](Engine& engine, const std::shared_ptr<Inbox>& inbox, nb::handle prompt,
             nb::handle params) {
            const Prompt given = to_prompt(prompt);
            const SamplingParams sampling = to_sampling_params(params);
            const Released released;
            return engine.add(inbox, given, sampling);
          },
          nb::arg(), nb::arg().none(), nb::arg().none())
      .def("wait",
           [](Engine& engine, Inbox& inbox, double seconds) {
             std::vector<RequestUpdate> arrived;
             {
               const Released released;
               arrived = engine.wait(inbox, seconds);
             }
             nb::list list;
             for (const RequestUpdate& update : arrived)
               list.append(nb::make_tuple(update.request_id, inbox.wants_pieces
                                                                 ? from_update(update)
                                                                 : from_output(*update.finished)));
             return list;
           })
      .def("abandon", &Engine::abandon, nb::call_guard<Released>())
      .def("abort", &Engine::abort, nb::call_guard<Released>())
      .def("exit", &Engine::exit, nb::call_guard<Released>())
      .def("require_alive", &Engine::require_alive)
      .def("num_tokens",
           [](const Engine& engine) {
             const auto [prefill, decode] = engine.num_tokens();
             return nb::make_tuple(prefill, decode);
           })
      .def("tokenizer", &Engine::tokenizer)
      .def_prop_ro("max_model_len", &Engine::max_model_len, nb::call_guard<Released>())
      .def_prop_ro("vocab_size", &Engine::vocab_size, nb::call_guard<Released>());

  m.def("leave", &leave);
  m.def("validate", [](nb::handle params) { to_sampling_params(params).validate(); });
}

}  // namespace nanovllm::python
