#include "nanovllm/hub/verify.h"

#include <cctype>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <optional>
#include <utility>

#include "nanovllm/base/check.h"
#include "nanovllm/base/strings/join.h"
#include "nanovllm/base/system/files.h"
#include "nanovllm/base/system/input_file.h"
#include "nanovllm/base/terminal/escape.h"
#include "nanovllm/hub/download/download_bars.h"
#include "nanovllm/hub/download/http.h"
#include "nanovllm/hub/download/tasks.h"
#include "nanovllm/hub/hub.h"

namespace nanovllm::hub {

namespace {

namespace fs = std::filesystem;

/// The files of a snapshot that this program reads.
struct SnapshotFiles {
  std::vector<FileCheck> checked;  // files whose checksum is known from the name of their blob
  size_t num_unknown = 0;
};

SnapshotFiles files_of(const std::string& snapshot) {
  SnapshotFiles files;
  std::error_code ignored;  // files that cannot be seen count as missing
  for (fs::recursive_directory_iterator at(snapshot, ignored), end; at != end;
       at.increment(ignored)) {
    const std::string name = at->path().lexically_relative(snapshot);
    if (!is_model_file(name) || !at->is_regular_file(ignored)) continue;
    // The name is no checksum on disks without links, which have the file itself, or if the file
    // comes from another server.
    const std::string digits = fs::read_symlink(at->path(), ignored).filename();
    if (const auto kind = checksum_kind(digits))
      files.checked.push_back({at->path(), {name, at->file_size(ignored), digits, *kind}});
    else ++files.num_unknown;
  }
  return files;
}

bool is_right(const FileCheck& file, const std::function<void(uint64_t)>& on_progress) {
  try {
    const InputFile input(file.path);
    if (input.size() != file.expected.size) return false;
    Checksum checksum(file.expected.kind, input.size());
    checksum.add_file(input, input.size(), on_progress);
    return checksum.digits() == file.expected.digits;
  } catch (const UserError&) {  // a part of the disk that cannot be read
    return false;
  }
}

/// Whether the text has this path, and not only a longer one that begins with it.
bool names(std::string_view text, std::string_view path) {
  for (size_t at = 0; (at = text.find(path, at)) != text.npos; at += path.size()) {
    const std::string_view rest = text.substr(at + path.size());
    if (rest.empty() ||
        !(rest.front() == '.' || std::isalnum(static_cast<unsigned char>(rest.front())) != 0))
      return true;
  }
  return false;
}

void note(const std::string& line) { std::fputs((escape_controls(line) + "\n").c_str(), stderr); }

}  // namespace

std::vector<FileCheck> damaged_files(const std::vector<FileCheck>& files, std::atomic<bool>& stop,
                                     const std::function<void()>& check_interrupt) {
  std::deque<FileProgress> progress(files.size());
  std::vector<FileProgress*> shown;
  std::vector<char> is_damaged(files.size(), 0);
  std::deque<std::function<void()>> tasks;
  for (size_t i = 0; i < files.size(); ++i) {
    progress[i].name = files[i].expected.name;
    progress[i].size = files[i].expected.size;
    shown.push_back(&progress[i]);
    tasks.emplace_back([&, i] {
      progress[i].begin(0);
      const auto on_progress = [&](uint64_t done) {
        if (stop) throw Stopped();
        progress[i].done = done;
      };
      is_damaged[i] = is_right(files[i], on_progress) ? 0 : 1;
      progress[i].state = FileProgress::kFinished;
    });
  }
  {
    DownloadBars bars(shown);
    run_tasks(std::move(tasks), stop, [&] {
      bars.draw();
      check_interrupt();
    });
  }
  std::vector<FileCheck> damaged;
  for (size_t i = 0; i < files.size(); ++i)
    if (is_damaged[i] != 0) damaged.push_back(files[i]);
  return damaged;
}

std::optional<std::string> verify_without_hub(const ModelId& id, const Settings& settings,
                                              const std::string& why,
                                              const std::function<void()>& check_interrupt) {
  const CachedModel cached(settings.cache_folder, id.name);
  const std::optional<std::string> commit = cached.commit_of(id.revision);
  if (!commit || !is_folder(cached.snapshot(*commit))) return std::nullopt;
  std::string snapshot = cached.snapshot(*commit);
  std::atomic<bool> stop = false;
  const SnapshotFiles files = files_of(snapshot);
  std::vector<std::string> damaged;
  for (const FileCheck& file : damaged_files(files.checked, stop, check_interrupt))
    damaged.push_back(file.path);
  require(damaged.empty(),
          "{} {} damaged: the contents do not have the checksum in the name of the blob; when the "
          "hub can be asked, `nanovllm pull {} --verify` downloads {} again ({})",
          join(damaged, ", "), damaged.size() == 1 ? "is" : "are", id.text(),
          damaged.size() == 1 ? "it" : "them", why);
  const std::vector<std::string> missing = missing_files(snapshot, /*needs_weights=*/true);
  require(missing.empty() || lacks_only_tokenizer(snapshot, missing),
          "{}: the copy in the cache {} lacks {} ({})", id.text(), settings.cache_folder,
          join(missing, ", "), why);
  note(fmt::format("warning: the hub was not asked ({})", why));
  note(
      fmt::format("{} files of {} have the right checksum; {} {} not checked, because no name of "
                  "a blob says what {} must be",
                  files.checked.size(), id.text(), files.num_unknown,
                  files.num_unknown == 1 ? "was" : "were", files.num_unknown == 1 ? "it" : "they"));
  return snapshot;
}

std::string verify_hint(const std::string& folder, std::string_view error) {
  constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // more would take seconds
  const std::string name = shown_name(folder);
  if (name == folder || error.find(folder) == error.npos) return "";
  size_t num_right = 0, num_wrong = 0;
  for (const FileCheck& file : files_of(folder).checked) {
    if (!names(error, file.path)) continue;
    const bool may_be_wrong = file.expected.size > kMostBytes || !is_right(file, [](uint64_t) {});
    ++(may_be_wrong ? num_wrong : num_right);
  }
  if (num_right > 0 && num_wrong == 0) return "";
  // The command is about the newest commit unless another one is named.
  const fs::path snapshot(folder);
  const fs::path cache = snapshot.parent_path().parent_path().parent_path();
  const std::string commit = snapshot.filename();
  const bool is_main = CachedModel(cache, name).commit_of("main") == commit;
  return fmt::format("; `nanovllm pull {}{} --verify` finds damaged files and downloads them again",
                     name, is_main ? "" : "@" + commit);
}

}  // namespace nanovllm::hub
