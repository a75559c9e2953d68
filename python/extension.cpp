// nanovllm._core: llm.h and the engine's inboxes for Python. This file also handles the GIL and the
// end of the interpreter. python/nanovllm/_core.pyi has the signatures.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <nanovllm/base/system/files.h>
#include <nanovllm/front/async_engine.h>
#include <nanovllm/hub/hub.h>
#include <nanovllm/params/generation_config.h>
#include <nanovllm/params/unsupported.h>
#include <nanovllm/text/chat_template.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "python/convert.h"
#include "python/views/views.h"

namespace nb = nanobind;

namespace nanovllm::python {

namespace {

std::atomic<bool> is_leaving = false;
std::atomic<int> num_away = 0,
                 num_returning = 0;  // threads that released the GIL; that wait for it
thread_local bool is_leaver = false;

/// Releases the GIL while the object exists. If a thread asks for the GIL while the interpreter
/// ends, Python ends the thread inside its C++ frames, which aborts the process. So such a thread
/// sleeps forever instead.
class Released {
 public:
  Released() { release(); }
  ~Released() {
    if (state_ != nullptr) take();
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  /// Throws the exception that the handler of a signal raises, such as KeyboardInterrupt, with the
  /// GIL taken.
  void check_signals() {
    take();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    release();
  }

 private:
  void release() {
    state_ = PyEval_SaveThread();
    ++num_away;
  }
  void take() {
    ++num_returning;
    if (is_leaving && !is_leaver) {
      --num_returning;
      for (;;) pause();
    }
    PyEval_RestoreThread(state_);
    state_ = nullptr;
    --num_returning;
    --num_away;
  }

  PyThreadState* state_ = nullptr;
};

/// After this call only this thread, and threads that are already waiting for the GIL, return to
/// Python.
void leave() {
  is_leaver = true;
  is_leaving = true;
  PyThreadState* const state = PyEval_SaveThread();
  while (num_returning > 0) std::this_thread::yield();
  PyEval_RestoreThread(state);
  if (num_away > 0) nb::set_leak_warnings(false);  // sleeping threads keep their objects
}

/// An inbox as a Python object. The engine must share only `inbox`: a shared_ptr to the Python
/// object would take the GIL when the engine destroys it, with its mutex locked, while a thread
/// that has the GIL may wait for that mutex.
struct PythonInbox {
  std::shared_ptr<Inbox> inbox;
};

/// Raises UserError and EngineDead with the names that Python's arguments have.
template <class Error>
void translate(const std::exception_ptr& thrown, void* type) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(static_cast<PyObject*>(type), with_python_names(error.what()).c_str());
  }
}

/// The module's exception for `Error`.
template <class Error>
void add_error(nb::module_& m, const char* name, PyObject* base) {
  const nb::exception<Error> type(m, name, base);
  nb::register_exception_translator(&translate<Error>, type.ptr());
}

/// LLMTokenizer, and the vocabulary, which the C++ API does not show.
struct PythonTokenizer {
  LLMTokenizer text;
  std::shared_ptr<const Tokenizer> vocabulary;  // null if there is no tokenizer.json
};

std::vector<int32_t> to_ids(const LLM& llm, Prompt prompt) {
  if (const auto* text = std::get_if<std::string>(&prompt)) return llm.tokenizer().encode(*text);
  return std::get<std::vector<int32_t>>(std::move(prompt));
}

}  // namespace

NB_MODULE(_core_of_main_interpreter, m) {
  m.attr("__version__") = NANOVLLM_VERSION;
  pthread_atfork(nullptr, nullptr, [] {  // no other thread is in a forked process
    num_away = num_returning = 0;
    nb::set_leak_warnings(false);  // the objects of the other threads remain
  });

  add_error<UserError>(m, "UserError", PyExc_ValueError);
  add_error<EngineDead>(m, "EngineDead", PyExc_RuntimeError);

  nb::class_<PythonTokenizer>(m, "Tokenizer")
      .def(
          "encode",
          [](const PythonTokenizer& tokenizer, nb::handle text, bool add_special_tokens) {
            const std::string utf8 = to_text(text, "text");
            const Released released;
            return tokenizer.text.encode(utf8, add_special_tokens);
          },
          nb::arg().none(), nb::arg())
      .def(
          "decode",
          [](const PythonTokenizer& tokenizer, nb::handle token_ids, bool skip_special_tokens) {
            return tokenizer.text.decode(to_token_ids(token_ids, "token_ids"), skip_special_tokens);
          },
          nb::arg().none(), nb::arg())
      .def("token_to_id",
           [](const PythonTokenizer& tokenizer, nb::handle token) {
             const std::string utf8 = to_text(token, "token");
             return tokenizer.vocabulary ? tokenizer.vocabulary->token_to_id(utf8) : std::nullopt;
           })
      .def("render_chat_template", [](const PythonTokenizer& tokenizer, nb::handle variables_json) {
        const std::string utf8 = to_text(variables_json, "the conversation");
        const Released released;
        return tokenizer.text.render_chat_template(utf8);
      });

  nb::class_<PythonInbox>(m, "Inbox");
  m.def("inbox",
        [](bool wants_pieces) { return PythonInbox{std::make_shared<Inbox>(wants_pieces)}; });

  nb::class_<LLM>(m, "Engine")
      .def("__init__",
           [](LLM* llm, nb::handle model, const nb::dict& options) {
             const std::string folder = to_text(model, "model");
             const EngineConfig config = to_engine_config(options);
             const Released released;
             new (llm) LLM(folder, config);
           })
      .def(
          "add",
          [](const LLM& llm, const PythonInbox& inbox, nb::handle prompt, nb::handle params,
             nb::handle cache_salt) {
            Prompt given = to_prompt(prompt);
            const SamplingParams sampling = to_sampling_params(params);
            const std::string salt = to_text(cache_salt, "cache_salt");
            const Released released;
            AsyncEngine& engine = llm.async_engine();
            engine.require_alive();
            return engine.submit(
                inbox.inbox, engine.requests().make(to_ids(llm, std::move(given)), sampling, salt));
          },
          nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg())
      .def(
          "check",
          [](const LLM& llm, nb::handle params) {
            llm.async_engine().requests().prepare(to_sampling_params(params));
          },
          nb::arg().none())
      .def("wait",
           [](const LLM& llm, const PythonInbox& inbox, double seconds) {
             std::vector<RequestUpdate> arrived;
             {
               const Released released;
               arrived = llm.async_engine().wait(*inbox.inbox, seconds);
             }
             const std::shared_ptr<const Tokenizer> tokenizer = llm.async_engine().tokenizer();
             nb::list list;
             for (const RequestUpdate& update : arrived) {
               const nb::tuple shown = inbox.inbox->wants_pieces()
                                           ? from_update(update, tokenizer.get())
                                           : from_output(*update.finished, tokenizer.get());
               list.append(nb::make_tuple(update.request_id, shown));
             }
             return list;
           })
      .def(
          "abandon",
          [](const LLM& llm, const PythonInbox& inbox) {
            llm.async_engine().cancel_all(*inbox.inbox);
          },
          nb::call_guard<Released>())
      .def("is_finished",
           [](const LLM& llm, const PythonInbox& inbox) {
             return llm.async_engine().is_finished(*inbox.inbox);
           })
      .def("abort", &LLM::abort, nb::call_guard<Released>())
      .def("exit", &LLM::exit, nb::call_guard<Released>())
      .def("require_alive", [](const LLM& llm) { llm.async_engine().require_alive(); })
      .def("num_tokens",
           [](const LLM& llm) {
             const EngineStats stats = llm.async_engine().stats();
             return nb::make_tuple(stats.prefill_tokens, stats.decode_tokens);
           })
      .def("stats", [](const LLM& llm) { return from_stats(llm.stats()); })
      .def("reset_prefix_cache", [](const LLM& llm) { llm.async_engine().reset_prefix_cache(); })
      .def("tokenizer",
           [](const LLM& llm) {
             return PythonTokenizer{llm.tokenizer(), llm.async_engine().tokenizer()};
           })
      .def_prop_ro("max_model_len", &LLM::max_model_len)
      .def_prop_ro("vocab_size", &LLM::vocab_size);

  m.def("find_model", [](nb::handle model, bool local_files_only, bool needs_weights,
                         nb::handle revision, nb::handle download_dir) {
    const std::string given = to_text(model, "model");
    hub::FindOptions options = {.local_files_only = local_files_only,
                                .needs_weights = needs_weights,
                                .revision = to_text(revision, "revision"),
                                .download_dir = to_text(download_dir, "download_dir")};
    Released released;
    options.check_interrupt = [&] { released.check_signals(); };
    return hub::find_model(given, options);
  });
  m.def("default_sampling_params", [](nb::handle folder, nb::handle source, nb::handle overrides) {
    const GenerationConfig config = {.source = to_text(source, "generation_config"),
                                     .overrides = to_text(overrides, "override_generation_config")};
    return to_dict(config.defaults(to_text(folder, "model")));
  });
  m.def("check_vllm_option", [](nb::handle name, nb::handle value, nb::handle shown,
                                const std::vector<std::string>& model) {
    const UnsupportedName* const option =
        find_unsupported(to_text(name, "the name of an option"), UnsupportedName::kEngineOption);
    if (option == nullptr) return false;
    option->check(to_text(value, "the value of an option"), model, to_text(shown, "an option"));
    return true;
  });
  m.def("unsupported_arguments", [](const std::string& owner) {
    const UnsupportedName::Place place = owner == "SamplingParams"
                                             ? UnsupportedName::kSamplingParams
                                         : owner == "generate" ? UnsupportedName::kGenerate
                                                               : UnsupportedName::kChat;
    nb::dict arguments;
    for (const UnsupportedName& name : unsupported_names())
      if ((name.places & place) != 0)
        arguments[nb::str(name.name.data(), name.name.size())] = name.harmless_json();
    return arguments;
  });
  m.def("load_tokenizer", [](nb::handle model) {
    const std::string folder = to_text(model, "model");
    const Released released;
    std::shared_ptr<const Tokenizer> vocabulary;
    if (path_exists(folder + "/tokenizer.json")) vocabulary = Tokenizer::load(folder);
    return PythonTokenizer{LLMTokenizer(folder, vocabulary), vocabulary};
  });
  bind_sequence(m);
  bind_block_manager(m);
  bind_scheduler(m);
  m.def("leave", &leave);
  m.def("validate", [](nb::handle params) { to_sampling_params(params).validate(); });
  m.def("validate_engine", [](const nb::dict& options) { to_engine_config(options).validate(); });
  m.def("sampling_fields", [](nb::handle params) { return to_dict(to_sampling_params(params)); });
  m.def("engine_fields",
        [](const nb::dict& options) { return to_dict(to_engine_config(options)); });
  m.def("sampling_help", &help_of_fields<SamplingParams>);
  m.def("engine_help", &help_of_fields<EngineConfig>);
  m.def("render", [](nb::handle chat_template, nb::handle variables_json) {
    const std::string source = to_text(chat_template, "chat_template");
    const std::string variables = to_text(variables_json, "the conversation");
    const Released released;
    return ChatTemplate(source, Json::object(), "chat_template")
        .prompt(parse_json(variables, "the chat template's variables"));
  });
}

// nanobind keeps its state in the process. If a second interpreter imported the module and still
// existed at the end of the process, Python would crash there.
extern "C" NB_EXPORT PyObject* PyInit__core() {
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0)
    return PyInit__core_of_main_interpreter();
  PyErr_SetString(PyExc_ImportError,
                  "nanovllm runs in the main interpreter only, and this is a subinterpreter; use a "
                  "thread or a process instead");
  return nullptr;
}

}  // namespace nanovllm::python
