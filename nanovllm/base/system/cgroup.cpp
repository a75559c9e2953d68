#include "nanovllm/base/system/cgroup.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

namespace nanovllm {

namespace {

constexpr size_t kNone = CgroupLimits::kNone;

/// The names, which differ between the two versions, of the files and of the entries of
/// memory.stat. In version 1, the entries that begin with "total_" include the groups below.
struct MemoryNames {
  const char *limit, *used, *inactive_file, *active_file;
};
constexpr MemoryNames kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                   "total_inactive_file", "total_active_file"};
constexpr MemoryNames kVersion2 = {"/memory.max", "/memory.current", "inactive_file",
                                   "active_file"};

/// A mounted hierarchy of groups: the fields of /proc/self/mountinfo that matter here.
struct Mount {
  std::string root;     // the group that is mounted, as a path in its hierarchy
  std::string point;    // where it is mounted
  std::string type;     // cgroup (version 1) or cgroup2
  std::string options;  // in version 1 they contain the controllers
};

size_t to_number(std::string_view text) {
  size_t value = kNone;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

bool has_item(const std::string& list, const std::string& item) {
  return ("," + list + ",").find("," + item + ",") != std::string::npos;
}

/// A field of mountinfo, in which a space, for example, is \040.
std::string unescaped(const std::string& field) {
  constexpr size_t kDigits = 3;
  std::string text;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] != '\\' || i + kDigits >= field.size()) {
      text += field[i];
      continue;
    }
    int code = 0;
    std::from_chars(&field[i + 1], &field[i + 1] + kDigits, code, /*base=*/8);
    text += static_cast<char>(code);
    i += kDigits;
  }
  return text;
}

/// The mounted hierarchies. A line is "id parent device root point options ... - type source
/// options", and the number of fields before the hyphen varies.
std::vector<Mount> read_mounts(const std::string& path) {
  std::vector<Mount> mounts;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string ignored, root, point, field, type, options;
    fields >> ignored >> ignored >> ignored >> root >> point;
    while (fields >> field && field != "-") {
    }
    fields >> type >> ignored >> options;
    if (fields && type.starts_with("cgroup"))
      mounts.push_back({unescaped(root), unescaped(point), type, options});
  }
  return mounts;
}

/// The folder of the group `path` and those of the groups above it, as far as the mount shows them;
/// none if it shows other groups. In a container, the path may begin at the root of the machine and
/// the mount at the container's group.
std::vector<std::string> folders_in(const Mount& mount, const std::string& path) {
  const std::string root = mount.root == "/" ? "" : mount.root;
  std::vector<std::string> folders;
  if (!(path + "/").starts_with(root + "/") || (path + "/").find("/../") != path.npos)
    return folders;
  std::string rest = path.substr(root.size());
  if (rest == "/") rest.clear();
  for (;; rest.resize(rest.rfind('/'))) {
    std::error_code ignored;  // a folder that cannot be seen has no limits that can be read
    if (std::filesystem::is_directory(mount.point + rest, ignored))
      folders.push_back(mount.point + rest);
    if (rest.empty()) return folders;
  }
}

/// The groups of this process.
class Groups {
 public:
  explicit Groups(const std::string& proc) : mounts_(read_mounts(proc + "/mountinfo")) {
    std::ifstream file(proc + "/cgroup");
    for (std::string line; std::getline(file, line);) lines_.push_back(line);
  }

  /// The folders of the group of a controller of version 1 and of all groups above it; with an
  /// empty name, those of version 2. If the hierarchy is mounted several times, it is the mount
  /// that shows the most. If none shows the group, because the process is outside of what its
  /// namespace can name ("/../.."), it is the group that is mounted.
  std::vector<std::string> folders(const std::string& controller) const {
    std::vector<std::string> most, mounted;
    for (const std::string& line : lines_) {  // "number:controllers:path"
      const size_t first = line.find(':'), second = line.find(':', first + 1);
      if (first == line.npos || second == line.npos) continue;
      const std::string controllers = line.substr(first + 1, second - first - 1);
      if (controller.empty() ? !controllers.empty() : !has_item(controllers, controller)) continue;
      for (const Mount& mount : mounts_) {
        const bool is_right = controller.empty()
                                  ? mount.type == "cgroup2"
                                  : mount.type == "cgroup" && has_item(mount.options, controller);
        if (!is_right) continue;
        std::vector<std::string> seen = folders_in(mount, line.substr(second + 1));
        if (seen.size() > most.size()) most = std::move(seen);
        mounted = {mount.point};
      }
    }
    return most.empty() ? mounted : most;
  }

 private:
  std::vector<Mount> mounts_;
  std::vector<std::string> lines_;
};

/// An entry of the group's memory.stat; `otherwise` if there is none.
size_t memory_stat(const std::string& folder, const char* name, size_t otherwise) {
  std::ifstream file(folder + "/memory.stat");
  std::string key;
  size_t value = 0;
  while (file >> key >> value)
    if (key == name) return value;
  return otherwise;
}

void apply_memory(const std::string& folder, const MemoryNames& names, CgroupLimits& limits) {
  size_t limit = number_in_file(folder + names.limit);
  // The groups of a container's pod are above what its mount shows, but this entry has the smallest
  // limit of all.
  if (&names == &kVersion1)
    limit = std::min(limit, memory_stat(folder, "hierarchical_memory_limit", kNone));
  constexpr size_t kNoLimit = size_t{1} << 62;  // version 1 writes the largest whole page
  const size_t current = number_in_file(folder + names.used);
  if (limit >= kNoLimit) return;
  limits.memory = std::min(limits.memory, limit);
  if (current == kNone) return;
  const size_t page_cache =
      memory_stat(folder, names.inactive_file, 0) + memory_stat(folder, names.active_file, 0);
  const size_t used = current - std::min(current, page_cache);
  limits.memory_left = std::min(limits.memory_left, limit - std::min(limit, used));
}

/// CPU time and length of a period, in microseconds.
void apply_quota(size_t quota, size_t period, CgroupLimits& limits) {
  if (quota == kNone || period == kNone || period == 0) return;
  const size_t whole = quota / period + (quota % period == 0 ? 0 : 1);
  limits.num_cpus = std::min(limits.num_cpus, std::max<size_t>(1, whole));
}

}  // namespace

size_t number_in_file(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  file >> text;
  return to_number(text);
}

CgroupLimits cgroup_limits(const std::string& proc) {
  const Groups groups(proc);
  CgroupLimits limits;
  for (const std::string& folder : groups.folders("")) {
    apply_memory(folder, kVersion2, limits);
    std::ifstream file(folder + "/cpu.max");
    std::string quota, period;
    if (file >> quota >> period) apply_quota(to_number(quota), to_number(period), limits);
  }
  bool is_own = true;
  for (const std::string& folder : groups.folders("memory")) {
    // Old kernels have groups whose limits do not hold for the groups below them.
    if (is_own || number_in_file(folder + "/memory.use_hierarchy") != 0)
      apply_memory(folder, kVersion1, limits);
    is_own = false;
  }
  for (const std::string& folder : groups.folders("cpu"))
    apply_quota(number_in_file(folder + "/cpu.cfs_quota_us"),
                number_in_file(folder + "/cpu.cfs_period_us"), limits);
  return limits;
}

}  // namespace nanovllm
