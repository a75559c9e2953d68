#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>

#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// The largest allowed size of each kind of file, so that a sparse or a wrong file is an error and
/// does not fill the memory (progress.bounded-work). Each limit is many times the size of the
/// largest published file: configurations have a few kilobytes, templates about 30 KB,
/// tokenizer_config.json up to 2 MB and tokenizer.json up to 35 MB.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxTokenizerConfigBytes = size_t{1} << 24;
constexpr size_t kMaxTokenizerBytes = size_t{1} << 28;
constexpr size_t kMaxIndexBytes = 100'000'000;  // an index names every tensor
constexpr size_t kMaxLineBytes = size_t{1} << 28;

/// Opens a regular file for reading. Throws UserError that names the path for anything else; for a
/// FIFO it does so without waiting for a writer.
FileDescriptor open_regular_file(const std::string& path);

/// The contents of a regular file. They are copied and not mapped, because truncating a mapped file
/// would kill the process. Throws UserError that names the path if the file cannot be read or has
/// more than `max_bytes` bytes.
std::string read_file(const std::string& path, size_t max_bytes);

/// The contents as read_file() gives them, or nothing if there is no such file.
std::optional<std::string> read_file_if_there(const std::string& path, size_t max_bytes);

/// The next line of the file, without its newline; nothing at the end of the file. Throws UserError
/// that names `where` if the file cannot be read, or if the line has kMaxLineBytes or more:
/// without this limit, a file without newlines, such as a device or a file of weights, would fill
/// the memory.
std::optional<std::string> read_line(FILE* file, const std::string& where);

/// Whether the path exists. Throws UserError if that cannot be found out, for example because of a
/// loop of symbolic links or a folder without permission.
bool path_exists(const std::string& path);

/// Whether the path is a folder. Throws as path_exists() does.
bool is_folder(const std::string& path);

/// Writes `text` to a new file beside `path` and renames it to `path`, so that there is always the
/// old file or the whole new one, also if the disk is full. Throws UserError that names the path.
void replace_file(const std::string& path, const std::string& text);

/// The user's folder that the XDG Base Directory Specification names `variable`, which is
/// `below_home` in the home folder if that is not set. Empty if there is no home folder either.
std::string user_folder(const char* variable, const char* below_home);

/// The path with "~" at its start replaced by the home folder, as a shell does it. It stays as it
/// is if there is no home folder.
std::string expand_home(const std::string& path);

/// Throws UserError if `folder` is not a folder.
void require_model_folder(const std::string& folder);

}  // namespace nanovllm
