// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/save_model.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <torch/serialize.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
}

// On the disk before it gets its name, or a power cut could leave an empty file under it.
void flush(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) != 0) {
    throw BackendError(
        fmt::format("{}: cannot be flushed to the disk: {}", path.string(), std::strerror(errno)));
  }
}

}  // namespace

void check_can_save(const std::filesystem::path& file) {
  const auto folder = folder_of(file);
  if (std::filesystem::is_directory(file) || !std::filesystem::is_directory(folder) ||
      ::access(folder.c_str(), W_OK) != 0) {
    throw UsageError(
        fmt::format("cannot save to {}: name a file in a folder that is there and may be written",
                    file.string()));
  }
}

void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file) {
  auto temporary = file;
  temporary += fmt::format(".tmp-{}", ::getpid());
  try {
    torch::serialize::OutputArchive archive;
    net->save(archive);
    archive.save_to(temporary.string());
    flush(temporary);
    std::filesystem::rename(temporary, file);
    flush(folder_of(file));
  } catch (const std::exception& error) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw BackendError(fmt::format("cannot save to {}: {}", file.string(), error.what()));
  }
}

}  // namespace lockstep
