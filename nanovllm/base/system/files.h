#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <string>

#include "nanovllm/base/system/file_descriptor.h"

namespace nanovllm {

/// The most that is read of each kind of file, so that a sparse or a wrong file is an error and
/// does not fill the memory. Each is many times the largest that is published: configurations have
/// a few kilobytes, templates some 30, tokenizer_config.json up to 2 MB and tokenizer.json 35 MB.
constexpr size_t kMaxConfigBytes = size_t{1} << 20;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr size_t kMaxTokenizerConfigBytes = size_t{1} << 24;
constexpr size_t kMaxTokenizerBytes = size_t{1} << 28;
constexpr size_t kMaxIndexBytes = size_t{1} << 27;  // of the names of all tensors

/// Opens a regular file for reading. Everything else is refused, and a FIFO without waiting for its
/// writer. Throws UserError that names the path.
FileDescriptor open_regular_file(const std::string& path);

/// The whole of a regular file, which is copied: a mapped file that somebody cuts short would end
/// the process. Throws UserError that names the path, also where the file has more than `max_bytes`
/// bytes.
std::string read_file(const std::string& path, size_t max_bytes);

/// The same, or nothing where there is no such file.
std::optional<std::string> read_file_if_there(const std::string& path, size_t max_bytes);

/// The next line of the file without its end; empty at the end of the file. Throws UserError that
/// names `where` if it cannot be read, or for a line longer than any prompt is: what has no ends of
/// lines, a device or a file of weights, would fill the memory.
std::optional<std::string> read_line(FILE* file, const std::string& where);

/// Whether the path names something. Throws UserError where that cannot be known: a loop of
/// symbolic links, a folder that may not be entered.
bool path_exists(const std::string& path);

/// Whether the path names a folder; throws as path_exists() does.
bool is_folder(const std::string& path);

}  // namespace nanovllm
