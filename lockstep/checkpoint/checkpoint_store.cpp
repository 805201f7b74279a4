// SPDX-License-Identifier: BSD-3-Clause
// Writes a checkpoint into a folder of another name, then renames the folder; reads and verifies.
#include "lockstep/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cerrno>
#include <exception>
#include <functional>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "lockstep/checkpoint/folder_changes.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sha256.h"
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/file/remove_folder.h"
#include "lockstep/core/file/whole_file.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/tensor/stored_bytes.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kPrefix = "step-";
constexpr std::string_view kReplaced = ".unfinished-replaced-";
constexpr const char* kLock = ".lock";
constexpr const char* kManifest = "manifest.json";
// The hash is in the format of sha256sum, so that `sha256sum -c` checks the manifest.
constexpr const char* kManifestHash = "manifest.json.sha256";
constexpr std::size_t kMostManifestBytes = 64 << 20;
constexpr int kMostManifestDepth = 20;

bool is_checkpoint_name(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of(kDigits, kPrefix.size()) == std::string_view::npos;
}

// Calls the function for the name of each entry. Returns the error if the folder cannot be read.
template <class Function>
std::error_code for_each_entry(const fs::path& folder, const Function& function) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    function(entry->path().filename().string());
  }
  return error;
}

void write_file(const fs::path& file, std::string_view text) {
  WholeFile out(file);
  out.write(text.data(), text.size());
  out.commit();
}

// Writes the file, and returns its description for the manifest.
json write_hashed(const fs::path& folder, const CheckpointFile& file) {
  WholeFile out(folder / file.name);
  Sha256 hash;
  std::uint64_t bytes = 0;
  for (const auto& piece : file.pieces) {
    out.write(piece.data(), piece.size());
    hash.add(piece);
    bytes += piece.size();
  }
  out.commit();
  return {{"bytes", bytes}, {"sha256", hash.finish()}};
}

// BackendError, since a lack of memory does not mean that the file is damaged.
void require_memory(std::uint64_t bytes, const fs::path& file) {
  try {
    require_memory_for(bytes, file.string());
  } catch (const CheckpointError& error) {
    throw BackendError(error.details());
  }
}

std::vector<std::byte> read_bytes(const fs::path& file, std::size_t limit) {
  try {
    const StoredBytes stored = bytes_in_file(file);
    if (stored.size > limit) {
      throw CheckpointError(
          fmt::format("{} has {} bytes instead of at most {}", file.string(), stored.size, limit));
    }
    require_memory(stored.size, file);
    std::vector<std::byte> bytes(stored.size);
    stored.read(0, bytes);
    return bytes;
  } catch (const UsageError& error) {  // it is missing, or is no file
    throw CheckpointError(error.details());
  }
}

std::string read_text(const fs::path& file, std::size_t limit) {
  const auto bytes = read_bytes(file, limit);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

json parse_manifest(const std::string& text, const fs::path& file) {
  const auto limit_depth = [](int depth, json::parse_event_t, const json&) {
    if (depth > kMostManifestDepth) throw CheckpointError("it is nested too deeply");
    return true;
  };
  try {
    json manifest = json::parse(text, limit_depth);
    for (const auto& [name, description] : manifest.at("files").items()) {
      if (name.find('/') == std::string::npos) continue;
      throw CheckpointError(
          fmt::format("it names the file {}, which is not in its folder", in_quotes(name)));
    }
    if (manifest.at("format") != "lockstep checkpoint") throw CheckpointError("another format");
    const auto version = manifest.at("version").get<std::int64_t>();
    if (version != 1) {
      throw UsageError(
          fmt::format("{} is of version {}, and this Lockstep reads version 1; use a later one",
                      file.string(), version));
    }
    return manifest;
  } catch (const json::exception& error) {
    throw CheckpointError(fmt::format("{}: {}", file.string(), first_line(error)));
  } catch (const CheckpointError& error) {
    ErrorDetails details = error.details();
    details.cause = fmt::format("{}: {}", file.string(), details.cause);
    throw CheckpointError(std::move(details));
  }
}

std::vector<NamedTensor> read_hashed(const fs::path& file, const json& description) {
  const auto size = description.at("bytes").get<std::uint64_t>();
  const auto bytes = read_bytes(file, size);
  if (bytes.size() != size) {
    throw CheckpointError(
        fmt::format("{} has {} bytes instead of {}", file.string(), bytes.size(), size));
  }
  if (sha256_of(bytes) != description.at("sha256").get<std::string>()) {
    throw CheckpointError(
        fmt::format("{} is damaged: its SHA-256 does not match {}", file.string(), kManifest));
  }
  const SafetensorsFile opened(bytes, file.string());
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < opened.entries().size(); ++i) {
    tensors.push_back({opened.entries()[i].name, opened.read(i)});
  }
  return tensors;
}

// Returns the score of a checkpoint; nullopt if it has none, or one that does not count.
std::optional<double> score_in(const json& manifest, const ScoreFilter& counts) {
  if (!manifest.at("score").is_number()) return {};
  if (counts) {
    const json& notes = manifest.at("position").at("notes");
    if (!counts(notes.get<std::map<std::string, std::string>>())) return {};
  }
  return manifest["score"].get<double>();
}

// Swaps two folders. Returns false if the file system cannot do that.
bool exchange(const fs::path& left, const fs::path& right) {
  if (::renameat2(AT_FDCWD, left.c_str(), AT_FDCWD, right.c_str(), RENAME_EXCHANGE) == 0) {
    return true;
  }
  if (errno == EINVAL || errno == ENOSYS) return false;
  fail_to("replace", right, errno);
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:012}", kPrefix, step);
}

std::vector<std::string> checkpoint_names(const fs::path& folder) {
  std::vector<std::string> names;
  const auto error = for_each_entry(folder, [&](const std::string& name) {
    if (is_checkpoint_name(name)) names.push_back(name);
  });
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_to("read", folder, error.value());
  }
  std::ranges::sort(names, std::greater{});
  return names;
}

json read_manifest(const fs::path& checkpoint) {
  const fs::path file = checkpoint / kManifest;
  const std::string text = read_text(file, kMostManifestBytes);
  const std::string hash = read_text(checkpoint / kManifestHash, 256);
  if (hash != fmt::format("{}  {}\n", sha256_of(std::as_bytes(std::span(text))), kManifest)) {
    throw CheckpointError(
        fmt::format("{} is damaged: its SHA-256 does not match {}", file.string(), kManifestHash));
  }
  return parse_manifest(text, file);
}

StoredCheckpoint read_checkpoint(const fs::path& checkpoint) {
  StoredCheckpoint stored{.manifest = read_manifest(checkpoint), .tensors = {}};
  try {
    for (const auto& [name, description] : stored.manifest.at("files").items()) {
      stored.tensors[name] = read_hashed(checkpoint / name, description);
    }
  } catch (const json::exception& error) {
    throw CheckpointError(
        fmt::format("{}: {}", (checkpoint / kManifest).string(), first_line(error)));
  }
  return stored;
}

CheckpointStore::CheckpointStore(fs::path folder, int keep_last, int keep_best,
                                 const ScoreFilter& counts)
    : folder_(std::move(folder)), kept_(folder_, keep_last, keep_best) {
  std::error_code error;
  fs::create_directories(folder_, error);
  if (!error) {
    lock_ = UniqueFd(::open(in(kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!lock_) error = {errno, std::generic_category()};
  }
  if (error) {
    throw UsageError(fmt::format("cannot write checkpoints into {}: {}; choose another folder",
                                 folder_.string(), error.message()));
  }
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw UsageError(fmt::format(
        "another run writes checkpoints into {}; wait until it ends, or choose another folder",
        folder_.string()));
  }
  remove_unfinished();
  const auto names = checkpoint_names(folder_);
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    std::optional<double> score;
    try {
      score = score_in(read_manifest(in(*name)), counts);
    } catch (const std::exception&) {  // load() says what is wrong with it
    }
    kept_.add(*name, score);
  }
}

void CheckpointStore::remove_unfinished() {
  std::vector<std::string> unfinished;
  for_each_entry(folder_, [&](const std::string& name) {
    if (name.starts_with(kUnfinishedCheckpoint)) unfinished.push_back(name);
  });
  for (const auto& name : unfinished) {
    // On a file system that cannot swap folders, a kill leaves the old one only under this name.
    if (name.starts_with(kReplaced)) {
      const fs::path original = in(name.substr(kReplaced.size()));
      if (!fs::exists(fs::symlink_status(original))) rename_to(in(name), original);
    }
    remove_tree(in(name));
  }
}

std::string CheckpointStore::write(std::int64_t step, std::optional<double> score, json manifest,
                                   const std::vector<CheckpointFile>& files) {
  const std::string name = checkpoint_name(step);
  const fs::path unfinished = in(std::string(kUnfinishedCheckpoint) + name);
  remove_tree(unfinished);
  std::error_code error;
  fs::create_directory(unfinished, error);
  if (error) fail_to("make", unfinished, error.value());
  try {
    for (const auto& file : files) {
      manifest["files"][file.name] = write_hashed(unfinished, file);
    }
    const std::string text = manifest.dump(1) + "\n";
    write_file(unfinished / kManifest, text);
    write_file(unfinished / kManifestHash,
               fmt::format("{}  {}\n", sha256_of(std::as_bytes(std::span(text))), kManifest));
    publish(unfinished, name);
  } catch (...) {
    remove_folder(unfinished);  // makes room again
    throw;
  }
  kept_.add(name, score);
  std::string warnings;
  const auto attempt = [&](const auto& function) {
    try {
      function();
    } catch (const std::exception& failure) {
      warnings += (warnings.empty() ? "" : "; ") + std::string(failure.what());
    }
  };
  attempt([&] { remove_tree(unfinished); });  // the replaced checkpoint
  attempt([&] { kept_.point_to_newest(); });
  attempt([&] { kept_.remove_old(); });
  attempt([&] { kept_.point_to_best(); });
  return warnings;
}

void CheckpointStore::publish(const fs::path& unfinished, const std::string& name) {
  const fs::path final = in(name);
  if (!fs::exists(fs::symlink_status(final))) {
    rename_to(unfinished, final);
  } else if (!exchange(unfinished, final)) {
    const fs::path replaced = in(std::string(kReplaced) + name);
    remove_tree(replaced);
    rename_to(final, replaced);
    rename_to(unfinished, final);
    flush_folder(folder_);
    remove_tree(replaced);
    return;
  }
  flush_folder(folder_);
}

}  // namespace lockstep
